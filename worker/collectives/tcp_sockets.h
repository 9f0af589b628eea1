// Finds which of this process's sockets belong to a gloo group. gloo has no way to cancel a collective, but a
// collective fails when the connections of its group are shut down. So we must know exactly which sockets these
// are: shutting down gloo's listener would end the process, and other sockets must not be touched.
//
// The group's connections are recognised by their ports: one end of each is a listener of the group.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace trainyard {

// File descriptors of this process's TCP listeners. Other threads may open more at any time.
absl::StatusOr<std::set<int>> TcpListeners();

// The port to which a TCP socket is bound.
absl::StatusOr<uint16_t> LocalPort(int fd);

// The address at which a member of a group accepts TCP connections.
struct TcpEnd {
  std::string address;  // numeric
  uint16_t port = 0;
  uint16_t closed_port = 0;  // on the same host; bound, but no process listens there. 0: none
};

// Returns a socket that is bound to a free port of this numeric address and does not listen: a connection attempt is
// refused immediately, which shows that the host is alive. Returns -1 if no port could be bound.
int BindClosedPort(const std::string& address);

// The closed port of the host that `connection` leads to; 0 if that host is not among `peers`.
uint16_t ClosedPortAcross(int connection, const std::vector<TcpEnd>& peers);

// Duplicates the descriptors of all connections that were accepted at `own.port` or lead to one of `peers`. After gloo
// has closed its descriptor, whose number may then be reused, the duplicate still refers to the same connection. The
// caller must close the duplicates.
absl::StatusOr<std::vector<int>> DuplicateConnections(const TcpEnd& own, const std::vector<TcpEnd>& peers);

}  // namespace trainyard
