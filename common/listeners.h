// The users whose programs listen at an address of this machine, from /proc/net/tcp and tcp6. For callers that must
// decide whether to trust a local server, because any user may listen on a free port. Linux only.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

struct PortOwner {
  uid_t user = 0;
  bool exact = false;  // listens at this address, not at all addresses; the kernel prefers such a socket
};

// Parses one line of the table and adds a matching listener to `found`. Returns false if the line is of another kind.
// Then the caller can stop, because listening sockets come first in the table, before perhaps thousands of connections.
// Pure.
bool ParseListener(absl::string_view line, const sockaddr_storage& address, std::vector<PortOwner>* found);

// The users of the sockets that may accept a connection to `address` (IPv4 or IPv6, with a port), each once. Empty if
// there are none. Possible errors: those of reading /proc/net.
absl::StatusOr<std::vector<uid_t>> ListeningUsers(const sockaddr_storage& address);

// The users whose program may be at the other end of a connection to `address`: all that ListeningUsers found `before`
// or `after` the connection was made. Empty if neither look found a user: the kernel does not report them. Pure.
// Possible errors: Unavailable: only one of the looks found a user, so the program at the other end has begun or
// stopped to listen meanwhile, and its user is not known; connect again.
absl::StatusOr<std::vector<uid_t>> UsersOfTwoLooks(const std::vector<uid_t>& before, const std::vector<uid_t>& after,
                                                   absl::string_view address);

// "127.0.0.1:7070", "[::1]:7070"; empty for other address families.
std::string NumericAddress(const sockaddr_storage& address);

}  // namespace trainyard
