// The interface through which checkpoints are written. The real one calls the kernel; a test passes one that runs out
// of disk space. A FileSystem is thread-safe; a WritableFile belongs to one thread. Every error names the path and has
// the code of its errno: ResourceExhausted for a full disk, PermissionDenied for a folder of another user.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/files.h"

namespace trainyard {

// Without atomic exchange, RenameOrExchange gives the previous `to` the name `from` + this suffix for a moment.
inline constexpr char kReplacedSuffix[] = ".replaced";

// A new file, written from its start. The destructor closes it; bytes that were not synced may be lost in a power cut.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // Starts to write bytes [first, last), which were appended before, to the disk, without waiting. Only Sync makes them
  // durable; Sync finishes sooner after this call. Does nothing if the file system does not support this.
  virtual absl::Status StartWriteBack(uint64_t first, uint64_t last) = 0;
  // Waits until bytes [first, last), passed to StartWriteBack before, are written. Fails with the error of the disk.
  virtual absl::Status AwaitWriteBack(uint64_t first, uint64_t last) = 0;
  virtual absl::Status Sync() = 0;
};

// Returns `status`; if it reports a full disk, with the free space of the file system of `path` appended: "...; the
// file system at /mnt has 0 of 8388608 bytes free".
absl::Status WithFreeSpace(absl::Status status, const std::string& path);

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // The machine's file system. Only the owner can access what it creates, whatever the umask is. Never deleted.
  static FileSystem& Real();
  // The same, but other users have the access that the umask allows.
  static FileSystem& ForOthers();

  // Fails with AlreadyExists, ResourceExhausted, PermissionDenied, or NotFound if the folder is missing.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  virtual absl::Status SyncFolder(const std::string& path) = 0;
  // Syncs a file that another process has written and perhaps not synced.
  virtual absl::Status SyncFile(const std::string& path) = 0;
  // Renames folder `from` to `to`. If `to` exists, exchanges the two atomically, so that neither name is ever missing;
  // the caller removes what is at `from` afterwards. Fails with NotFound, and changes nothing, if `from` is missing.
  virtual absl::Status RenameOrExchange(const std::string& from, const std::string& to) = 0;
  // Removes the file or folder at `path` and everything in it. Succeeds if nothing is there.
  virtual absl::Status RemoveAll(const std::string& path) = 0;
};

// Gives the finished folder `from` the name `to` with RenameOrExchange, then syncs the folder that holds `to`, so that
// the name survives a power cut. What was at `to` is at `from` afterwards, and the caller removes it. If the sync
// fails, `to` is already in place.
absl::Status PublishFolder(const std::string& from, const std::string& to, FileSystem& file_system);

// As PublishFolder, for a name that was free when the caller began. `removal` is the absl::Cleanup that removes `from`;
// it is cancelled if something is at `to` afterwards: another process may have made a folder there meanwhile, which is
// at `from` then and is not ours to remove. If PublishFolder failed, that may be our own folder, and stays, too: the
// error does not show whether the rename or the sync after it has failed.
template <typename Removal>
absl::Status PublishNewFolder(const std::string& from, const std::string& to, FileSystem& file_system,
                              Removal& removal) {
  absl::Status published = PublishFolder(from, to, file_system);
  if (FileExists(to)) std::move(removal).Cancel();
  return published;
}

}  // namespace trainyard
