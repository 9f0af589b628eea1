// TCP addresses to listen on. A port that is taken is told apart from an address that is not this host's.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace trainyard {

struct Listener {
  int fd = -1;          // the caller's
  std::string address;  // host as it was given, and the port
};

// Listens on `address`, host:port, where port 0 is a free one. A port that is taken is tried again until `wait` has
// passed: a predecessor may be on its way out. Neither blocking nor inherited. Possible errors:
//   InvalidArgument    the address is none, or not one of this host's.
//   Unavailable        the port is taken.
//   PermissionDenied   the port is reserved for other users.
absl::StatusOr<Listener> ListenOn(absl::string_view address, absl::Duration wait);

}  // namespace trainyard
