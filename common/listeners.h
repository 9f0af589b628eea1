// Whose program listens at an address of this machine, as the kernel tells in /proc/net/tcp and tcp6. For who is about
// to trust what answers there: any user may take a port that is free. Linux only.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

struct Listener {
  uid_t user = 0;
  bool exact = false;  // at this address, not at all addresses: the kernel prefers it
};

// Takes lines of such a table one after the other. Listening sockets stand first in it, and thousands of connections
// may follow: false, once a line is of something else. Pure.
bool TakeListener(absl::string_view line, const sockaddr_storage& address, std::vector<Listener>* found);

// Users of the sockets of which one takes a connection to `address` (IPv4 or IPv6, with a port), each once; empty: none
// does. Possible errors: those of reading /proc/net.
absl::StatusOr<std::vector<uid_t>> ListeningUsers(const sockaddr_storage& address);

// "127.0.0.1:7070", "[::1]:7070"; of another family: "".
std::string NumericAddress(const sockaddr_storage& address);

}  // namespace trainyard
