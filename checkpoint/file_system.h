// What a checkpoint is written through. The real one calls the kernel; a test hands in one that runs out of disk.
// A FileSystem is thread-safe; a WritableFile belongs to one thread. Every error names the path, and errno's meaning is
// kept: ResourceExhausted is a full disk, PermissionDenied a folder that is not ours.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// Where RenameOrExchange, on a file system that cannot exchange, has what lies at `to` for a moment.
inline constexpr char kReplacedSuffix[] = ".replaced";

// A new file, written from its start. Closed by its destructor; what was not synced may be lost in a power cut.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // Bytes [first, last), appended before, begin their way to the disk; the caller goes on. They are no safer for it:
  // only Sync makes them so, which then has less to wait for. Nothing where the file system cannot.
  virtual absl::Status StartWriteBack(uint64_t first, uint64_t last) = 0;
  // Waits until those have been written. Possible errors: what the disk said.
  virtual absl::Status AwaitWriteBack(uint64_t first, uint64_t last) = 0;
  virtual absl::Status Sync() = 0;
};

// `status`; where it says that a disk is full, with how much room the file system of `path` has: "...; the file system
// at /mnt has 0 of 8388608 bytes free".
absl::Status WithFreeSpace(absl::Status status, const std::string& path);

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // The machine's. What it makes is for its owner alone, whatever the umask is. Never deleted.
  static FileSystem& Real();
  // The same, for what a person makes to hand it on: as readable as the umask allows.
  static FileSystem& ForOthers();

  // Possible errors: AlreadyExists; ResourceExhausted; PermissionDenied; NotFound when the folder is missing.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  virtual absl::Status SyncFolder(const std::string& path) = 0;
  // A file that somebody else has written and perhaps not synced.
  virtual absl::Status SyncFile(const std::string& path) = 0;
  // Gives folder `from` the name `to`; NotFound, and nothing is touched, where there is no `from`. Where `to` exists
  // the two change places at once, so that neither is ever missing; what was at `to` is then at `from`, to be removed
  // by the caller.
  virtual absl::Status RenameOrExchange(const std::string& from, const std::string& to) = 0;
  // Whatever is at `path`, with all it holds. Nothing there is no error.
  virtual absl::Status RemoveAll(const std::string& path) = 0;
};

// Gives the finished folder `from` the name `to` with RenameOrExchange, then syncs the folder that holds `to`, so that
// the name survives a power cut. What was at `to` is at `from` afterwards, and the caller removes it. If the sync fails,
// `to` is already in place.
absl::Status PublishFolder(const std::string& from, const std::string& to, FileSystem& file_system);

}  // namespace trainyard
