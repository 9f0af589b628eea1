// Decides whether a job without a value for resources.device computes on GPUs: it does if each host of its placement
// has a GPU for every rank there, if the job can use these GPUs, and if no other job there could be using them. Pure;
// called when a generation is placed, so the device may change with the hosts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"

namespace trainyard {

struct DeviceHost {
  HostName name;
  uint32_t ranks = 0;     // of the job, on this host
  uint32_t gpus = 0;      // as listed by its driver
  std::string gpu_note;   // why it has no GPU
  std::string cuda_note;  // why trainers cannot use its GPUs; empty: they can
  // Other jobs that may use the GPUs: "job ab12". A rank chooses its GPU by its number among the job's ranks of a host,
  // so two jobs would choose the same one.
  std::string other_jobs;
  uint32_t compute_major = 0;  // of the weakest GPU; 0: at least one GPU does not report it
};

struct DeviceFacts {
  bool needs_bfloat16 = false;
  std::vector<DeviceHost> hosts;
};

struct DeviceDecision {
  bool cuda = false;
  std::string reason;  // "w1 has 2 GPUs for 2 ranks"; "w2 has no GPU: libnvidia-ml.so.1 not found"
};

DeviceDecision DecideDevice(const DeviceFacts& facts);

}  // namespace trainyard
