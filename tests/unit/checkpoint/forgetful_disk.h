// A disk that loses unsynced writes in a power cut. It works on a real folder, so that readers see the present content,
// and also records the content after a power cut: the synced bytes of files, and the names that folders had when they
// were synced. The kernel guarantees no more, and file systems differ in what else survives. A restart therefore
// keeps only synced data, or everything, or synced data and a part of the rest that a seed determines.
//
//   ForgetfulDisk disk(folder);
//   disk.CrashAfter(7);                  // the eighth call fails, and so does every one after it
//   Save(disk);
//   disk.Restart(Survives::kSynced);     // the folder now has the content that a restarted machine finds
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/file_system.h"

namespace trainyard {

enum class Survives {
  kSynced,      // only synced data
  kEverything,  // all data, as if it had been written back just before
  kSome,        // synced data and a part of the rest: the first changes of names, and torn or zeroed bytes
  kProcess,     // only the process was killed: all data is there, but a later power cut may lose unsynced data
};

class ForgetfulDisk final : public FileSystem {
 public:
  // The present content of `root` counts as synced. `root` itself is never removed.
  explicit ForgetfulDisk(std::string root);
  ~ForgetfulDisk() override;

  void CrashAfter(int calls) { calls_left_ = calls; }
  int num_calls() const { return num_calls_; }
  // Returns whether a call has been refused.
  bool crashed() const { return crashed_; }
  void Restart(Survives survives, uint32_t seed = 0);

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::Status SyncFolder(const std::string& path) override;
  absl::Status SyncFile(const std::string& path) override;
  absl::Status RenameOrExchange(const std::string& from, const std::string& to) override;
  absl::Status RemoveAll(const std::string& path) override;

 private:
  struct Node;
  class File;
  using NodePtr = std::shared_ptr<Node>;
  // Names that change together, and the nodes that they refer to after the change; null: the name is removed.
  using Change = std::vector<std::pair<std::string, NodePtr>>;

  absl::Status Call();
  NodePtr Find(const std::string& path) const;
  void Apply(const std::string& folder, Change change);
  // Writes the surviving content of `node` to the real folder.
  void WriteTree(const std::string& path, const NodePtr& node);

  const std::string root_;
  NodePtr tree_;
  int calls_left_ = -1;  // -1: the disk does not crash
  int num_calls_ = 0;
  bool crashed_ = false;
};

}  // namespace trainyard
