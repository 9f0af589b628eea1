// Decides whether a job that leaves resources.device open computes on GPUs: where each host that it was placed on has
// one for every rank there. Pure; called when a generation is placed, so a job may change over with its hosts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"

namespace trainyard {

struct DeviceHost {
  HostName name;
  uint32_t ranks = 0;     // of the job
  uint32_t gpus = 0;      // that its driver lists
  std::string gpu_note;   // why there are none
  std::string cuda_note;  // why trainers cannot compute on them; empty: they can
  // "job ab12": who else may compute on them. A rank takes its GPU by its number among the job's ranks of a host, so
  // two jobs would take the same one.
  std::string others;
  uint32_t compute_major = 0;  // of the weakest GPU; 0: not told
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
