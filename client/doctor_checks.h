// Checks of a cluster and of this machine that run nothing on the hosts. Pure, except for CheckThisMachine.
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

// Checks that hosts are attached and reachable, and their clocks, versions, disks, labels and data addresses. A host
// without problems and notes gets one kOk finding.
std::vector<Finding> CheckHosts(const v1::ServerInfo& server, const v1::ListHostsResponse& hosts);

// Checks that the programs are next to trainctl, that the working directory, in which run folders are made by default,
// is writable and has space, and that a loopback port can be opened.
std::vector<Finding> CheckThisMachine(const std::string& binary_folder, const std::string& working_directory);

// Returns why a host is not probed; empty if it is.
std::string WhyNotProbed(const v1::HostStatus& host);

bool AnyProblem(const std::vector<Finding>& findings);

}  // namespace trainyard::client
