// Keeps those who read a checkpoint and those who would remove it apart. A reader holds a shared lock of the kernel
// (flock) on the checkpoint's manifest, whoever removes it needs the exclusive one; both ends with the process. A file
// system without such locks keeps nobody apart. Values that may be moved; used by one thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace trainyard {

class CheckpointLease {
 public:
  // While it lives, the checkpoint at `path` is not removed by retention or by trainctl. Possible errors: NotFound: no
  // manifest is there; Unavailable: it is being removed.
  static absl::StatusOr<std::unique_ptr<CheckpointLease>> ToRead(const std::string& path);
  // While it lives, nobody begins to read. Possible errors: Unavailable: it is being read. A checkpoint without a
  // manifest is nobody's.
  static absl::StatusOr<std::unique_ptr<CheckpointLease>> ToRemove(const std::string& path);
  ~CheckpointLease();
  CheckpointLease(const CheckpointLease&) = delete;
  CheckpointLease& operator=(const CheckpointLease&) = delete;

 private:
  explicit CheckpointLease(int fd) : fd_(fd) {}
  const int fd_;  // -1: nothing is locked
};

}  // namespace trainyard
