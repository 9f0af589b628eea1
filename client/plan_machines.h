// Where the machines of `trainctl plan` come from: a machines file, the hosts of a coordinator, or this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainyard/v1/job.pb.h"
#include "trainyard/v1/machines.pb.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

struct PlanMachines {
  v1::Machines machines;
  std::vector<std::string> notes;  // what was assumed, or left out
};

// Reads a machines file; "-" is standard input.
// Possible errors: NotFound: it does not exist. InvalidArgument: it cannot be read, or has problems; all are listed.
absl::StatusOr<PlanMachines> MachinesOfFile(const std::string& path);

// The hosts of a coordinator that can get ranks, in groups of equal ones. Their links are not known and have the
// defaults of machines files. If the job uses CPUs, GPUs of the hosts are ignored. Hosts that resources.hosts and
// exclude_hosts of the job do not allow are left out. Pure.
// Possible errors: InvalidArgument: there is no such host, or the speed of their GPUs is not known.
absl::StatusOr<PlanMachines> MachinesOfHosts(const v1::ListHostsResponse& hosts, const v1::JobSpec& spec);

// One host with `memory_bytes` (0: unknown) and the CPU ranks of the job. Possible errors: InvalidArgument: the job
// requires GPUs, or the memory is not known. Pure.
absl::StatusOr<PlanMachines> MachinesOfJob(const v1::JobSpec& spec, uint64_t memory_bytes);

}  // namespace trainyard::client
