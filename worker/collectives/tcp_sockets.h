// Which of this process' sockets belong to a gloo group. gloo cannot be told to leave a collective, but a group whose
// connections are shut down leaves by itself; so we must know its connections, and only those: shutting down gloo's
// listener ends the process, and other sockets are none of our business.
//
// The group's connections are told by ports: one end of each is a listener of the group.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace trainyard {

// File descriptors of this process' TCP listeners. Other threads may open more at any time.
absl::StatusOr<std::set<int>> TcpListeners();

// The port a TCP socket is bound to.
absl::StatusOr<uint16_t> LocalPort(int fd);

// One end of a TCP connection that a group made.
struct Listener {
  std::string address;  // numeric
  uint16_t port = 0;
  uint16_t closed_port = 0;  // of the same host; bound, but nobody listens there. 0: none
};

// A socket bound to a free port of this numeric address, where it does not listen: whoever knocks there hears at once
// that the host is there. -1: none could be bound.
int BindClosedPort(const std::string& address);

// The closed port of the peer's host that a connection leads to; 0: of none of them.
uint16_t ClosedPortAcross(int connection, const std::vector<Listener>& peers);

// Duplicates of the descriptors of all connections that were accepted at `own.port`, or lead to one of `peers`. A
// duplicate keeps its number from being given to another socket once gloo has closed its own. The caller closes them.
absl::StatusOr<std::vector<int>> DuplicateConnections(const Listener& own, const std::vector<Listener>& peers);

}  // namespace trainyard
