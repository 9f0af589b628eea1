// Prevents the removal of a checkpoint while it is read. A reader holds a shared lock of the kernel (flock) on the
// checkpoint's manifest, and removing needs the exclusive lock; both locks end with the process. There is no protection
// on a file system without such locks. Not thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace trainyard {

class CheckpointLease {
 public:
  // While the lease exists, neither retention nor trainctl removes the checkpoint at `path`. Fails with NotFound if
  // there is no manifest, with Unavailable if the checkpoint is being removed.
  static absl::StatusOr<std::unique_ptr<CheckpointLease>> ToRead(const std::string& path);
  // While the lease exists, no reader can open the checkpoint. Fails with Unavailable if it is being read. A checkpoint
  // without a manifest has no readers.
  static absl::StatusOr<std::unique_ptr<CheckpointLease>> ToRemove(const std::string& path);
  ~CheckpointLease();
  CheckpointLease(const CheckpointLease&) = delete;
  CheckpointLease& operator=(const CheckpointLease&) = delete;

 private:
  explicit CheckpointLease(int fd) : fd_(fd) {}
  const int fd_;  // -1: nothing is locked
};

}  // namespace trainyard
