// Formats hosts as text and as JSON. Pure.
#pragma once

#include <string>

#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// "up", "unreachable 12 s" or "away 3m10s" (not attached), followed by ", in trouble", ", cordoned" and ", leaving" as
// they apply.
std::string HostState(const v1::HostStatus& host);

// A table of all hosts: state, slots, jobs, labels, version, clock skew, free disk; below it the problems of hosts and
// the reasons of cordons. `columns`: see Table.
std::string HostTable(const v1::ListHostsResponse& hosts, int columns = 0);

// One line: {"event":"host","name":"w1","attached":true,...}.
std::string HostJson(const v1::HostStatus& host);

}  // namespace trainyard::client
