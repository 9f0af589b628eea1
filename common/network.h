// Network addresses as text: splitting them, and whether they can only mean this machine. No name lookups. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace trainyard {

// Whether `host` (no port, no brackets) can only be this machine. "127.a" may be the name of another host, so a
// text that begins with "127." must consist of digits and points.
bool IsLoopbackHost(absl::string_view host);

struct HostPort {
  absl::string_view host;  // without brackets; a part of the text that was split
  uint32_t port = 0;
};

// Splits "host:port" or "[v6]:port". None if the text has another form, or the port is not from `port_min` to 65535. An
// address to listen on may have port 0, which means any free port.
absl::optional<HostPort> SplitHostPort(absl::string_view address, uint32_t port_min = 1);

// PATH of "unix:PATH", the address of a Unix socket. None if the text has another form.
absl::optional<absl::string_view> SplitUnixAddress(absl::string_view address);

// The address as the target of a gRPC channel. gRPC reads that of a Unix socket as a URI, in which '%', '?' and '#'
// have a meaning.
std::string GrpcTarget(absl::string_view address);

// Whether data sent to `address` (host:port or unix:PATH) can only reach this machine.
bool IsLocalAddress(absl::string_view address);

}  // namespace trainyard
