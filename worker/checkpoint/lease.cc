#include "worker/checkpoint/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "worker/checkpoint/manifest.h"

namespace trainyard {
namespace {

// False: somebody is in the way.
bool Lock(int fd, int kind) {
  while (flock(fd, kind | LOCK_NB) != 0) {
    if (errno != EINTR) return errno != EWOULDBLOCK;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointLease>> CheckpointLease::ToRead(const std::string& path) {
  const std::string manifest = JoinPath(path, kManifestName);
  const int fd = open(manifest.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot open ", manifest));
  std::unique_ptr<CheckpointLease> lease(new CheckpointLease(fd));
  if (!Lock(fd, LOCK_SH)) return absl::UnavailableError(absl::StrCat(path, " is being removed"));
  return lease;
}

absl::StatusOr<std::unique_ptr<CheckpointLease>> CheckpointLease::ToRemove(const std::string& path) {
  const std::string manifest = JoinPath(path, kManifestName);
  // NFS locks exclusively only what may be written.
  int fd = open(manifest.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) fd = open(manifest.c_str(), O_RDONLY | O_CLOEXEC);
  std::unique_ptr<CheckpointLease> lease(new CheckpointLease(fd));
  if (fd >= 0 && !Lock(fd, LOCK_EX)) return absl::UnavailableError(absl::StrCat(path, " is being read"));
  return lease;
}

CheckpointLease::~CheckpointLease() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace trainyard
