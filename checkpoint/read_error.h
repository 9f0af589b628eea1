// Tells a failed read of a checkpoint from damage. Damage is what was read and is wrong, or is not there: a job passes
// over such a checkpoint, or replaces it. A failed read (an I/O error, a stale file handle of NFS, no permission) shows
// nothing about the checkpoint, which another host may read, or this host later. Nothing is passed over, replaced or
// removed because of it.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trainyard {

// Marks the error of a system call as a failed read, unless the error says what is there: NotFound, or
// FailedPrecondition (something that is not a file). Does not change OK and errors that no system call returns.
absl::Status MarkFailedRead(absl::Status status);
template <typename T>
absl::StatusOr<T> MarkFailedRead(absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return MarkFailedRead(std::move(result).status());
}

// Whether `status`, or the status to which a text was added, was marked.
bool IsFailedRead(const absl::Status& status);

}  // namespace trainyard
