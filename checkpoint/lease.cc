#include "checkpoint/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "checkpoint/manifest.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

// Returns false if another process holds a conflicting lock. Returns true if the file system has no locks (lease.h).
bool Lock(int fd, int kind) {
  while (flock(fd, kind | LOCK_NB) != 0) {
    if (errno != EINTR) return errno != EWOULDBLOCK;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointLease>> CheckpointLease::ToRead(const std::string& path) {
  const std::string manifest = JoinPath(path, kManifestName);
  ASSIGN_OR_RETURN(const int fd, OpenRegularFile(manifest, O_RDONLY));
  std::unique_ptr<CheckpointLease> lease(new CheckpointLease(fd));
  if (!Lock(fd, LOCK_SH)) return absl::UnavailableError(absl::StrCat(path, " is being removed"));
  return lease;
}

absl::StatusOr<std::unique_ptr<CheckpointLease>> CheckpointLease::ToRemove(const std::string& path) {
  const std::string manifest = JoinPath(path, kManifestName);
  // NFS grants an exclusive lock only on a file that is open for writing.
  int fd = OpenRegularFile(manifest, O_RDWR).value_or(-1);
  if (fd < 0) fd = OpenRegularFile(manifest, O_RDONLY).value_or(-1);
  std::unique_ptr<CheckpointLease> lease(new CheckpointLease(fd));
  if (fd >= 0 && !Lock(fd, LOCK_EX)) return absl::UnavailableError(absl::StrCat(path, " is being read"));
  return lease;
}

CheckpointLease::~CheckpointLease() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace trainyard
