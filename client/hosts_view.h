// Hosts as people and programs see them. Pure.
#pragma once

#include <string>

#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// "up", "unreachable 12 s", "away 3m10s" (not attached); with ", in trouble", ", cordoned" and ", leaving" where it is
// so.
std::string HostState(const v1::HostStatus& host);

// A table of all hosts: state, slots, jobs, labels, version, clock skew, free disk; then what is wrong with some, and
// why some are cordoned. `columns`: see Table.
std::string HostTable(const v1::ListHostsResponse& hosts, int columns = 0);

// One line: {"event":"host","name":"w1","attached":true,...}.
std::string HostJson(const v1::HostStatus& host);

}  // namespace trainyard::client
