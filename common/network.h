// What can be told of an address by its text alone. Pure.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace trainyard {

// Whether `host` (no port, no brackets) can only be this machine. A name may start with "127." as well; an address
// holds nothing but digits and points.
bool IsLoopbackHost(absl::string_view host);

struct HostPort {
  absl::string_view host;  // without brackets; part of what was split
  uint32_t port = 0;
};

// Of "host:port" or "[v6]:port"; none: it is neither, or the port is not from `port_min` to 65535. An address to listen
// on may have port 0, a free one.
absl::optional<HostPort> SplitHostPort(absl::string_view address, uint32_t port_min = 1);

// PATH of "unix:PATH", the address of a Unix socket; none: it is no such address.
absl::optional<absl::string_view> SplitUnixAddress(absl::string_view address);

// Whether what is sent to `address` (host:port or unix:PATH) can only go to this machine.
bool IsLocalAddress(absl::string_view address);

}  // namespace trainyard
