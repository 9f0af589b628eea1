// A disk that forgets. It works on a real folder, so that readers see what they would see, and remembers beside it what
// would be left after a power cut: of a file what was synced, of a folder the names that were there when it was synced.
// The kernel promises no more, and file systems differ in what else they keep; so a restart keeps just that, or
// everything, or some of the rest, by a seed.
//
//   ForgetfulDisk disk(folder);
//   disk.CrashAfter(7);                  // the eighth call fails, and so does every one after it
//   Save(disk);
//   disk.Restart(Survives::kSynced);     // the folder is now what a machine would find that comes up again
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/file_system.h"

namespace trainyard {

enum class Survives {
  kSynced,      // nothing but what was synced
  kEverything,  // as if all had been written a moment before
  kSome,        // what was synced, and by the seed a part of the rest: names in order, bytes torn or zeros
  kProcess,     // the process alone was killed: all is there, but what was not synced may still be lost
};

class ForgetfulDisk final : public FileSystem {
 public:
  // What lies in `root` now is safe. `root` itself never goes.
  explicit ForgetfulDisk(std::string root);
  ~ForgetfulDisk() override;

  void CrashAfter(int calls) { calls_left_ = calls; }
  int num_calls() const { return num_calls_; }
  // Whether a call has been refused.
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
  // Names that change together, and what they stand for then; null: nothing.
  using Change = std::vector<std::pair<std::string, NodePtr>>;

  absl::Status Call();
  NodePtr Find(const std::string& path) const;
  void Apply(const std::string& folder, Change change);
  void Forget(const std::string& path, const NodePtr& node);

  const std::string root_;
  NodePtr tree_;
  int calls_left_ = -1;  // none: it does not crash
  int num_calls_ = 0;
  bool crashed_ = false;
};

}  // namespace trainyard
