// Opens TCP sockets for listening. A port that is in use and an address of another host are different errors.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace trainyard {

struct Listener {
  int fd = -1;          // owned by the caller
  std::string address;  // the host as given, and the port
};

// Listens on `address`, host:port, where port 0 means any free port. Retries a port that is in use until `wait` has
// passed, because the previous process may be about to exit. The socket is non-blocking and close-on-exec. Possible
// errors:
//   InvalidArgument    the address is invalid, or belongs to another host.
//   Unavailable        the port is in use.
//   PermissionDenied   the port is reserved for other users.
absl::StatusOr<Listener> ListenOn(absl::string_view address, absl::Duration wait);

}  // namespace trainyard
