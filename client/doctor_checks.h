// What can be told of a cluster, and of this machine, without running anything there. Pure, but for CheckThisMachine.
#pragma once

#include <string>
#include <vector>

#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

struct Finding {
  enum class Level { kOk, kNote, kProblem };
  Level level = Level::kOk;
  std::string subject;  // a host, "trainctl", "coordinator"
  std::string text;
};

// Hosts: attached and reachable, clocks, versions, disks, labels, data addresses. A host of which nothing is wrong gets
// one finding that says so.
std::vector<Finding> CheckHosts(const v1::ServerInfo& server, const v1::ListHostsResponse& hosts);

// Whether the programs lie beside trainctl, whether the default run folder can be written to and has room, whether a
// port of loopback can be listened on.
std::vector<Finding> CheckThisMachine(const std::string& binary_folder, const std::string& working_directory);

// Why a host is not probed; empty: it is.
std::string NotProbed(const v1::HostStatus& host);

bool AnyProblem(const std::vector<Finding>& findings);

}  // namespace trainyard::client
