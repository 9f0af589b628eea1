#include "checkpoint/read_error.h"

#include "absl/strings/cord.h"

namespace trainyard {
namespace {

constexpr char kFailedReadUrl[] = "trainyard/failed_read";

}  // namespace

absl::Status MarkFailedRead(absl::Status status) {
  switch (status.code()) {
    // The codes of ErrnoStatus for errors that do not describe what is at the path.
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
      status.SetPayload(kFailedReadUrl, absl::Cord());
      return status;
    default:
      return status;
  }
}

bool IsFailedRead(const absl::Status& status) { return status.GetPayload(kFailedReadUrl).has_value(); }

}  // namespace trainyard
