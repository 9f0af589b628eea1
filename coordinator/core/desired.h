// The desired state of one host, made from the jobs that have ranks there: everything it should be doing, whole, each
// time. Pure but for the marks that say from which revision on a trainer was no longer in it.
#pragma once

#include "coordinator/core/state.h"

namespace trainyard {

inline constexpr char kDeviceKey[] = "resources.device";
inline constexpr char kCudaWord[] = "cuda";

// Where the job's ranks compute: as its spec says, else as it was decided with the placement.
v1::Device DeviceOf(const Job& job);

// Threads of one trainer: as the spec says, else the host's cores shared by the job's ranks there, at least 1.
uint32_t ThreadsPerRank(const Job& job, const Host& host, uint32_t local_world_size);

// The message with the host's current revision.
v1::CoordinatorMessage MakeDesired(const State& state, const Host& host);

// Notes for each trainer that the host's current revision lacks that it is gone, or about to be, once this is applied.
void MarkRemoved(State& state, const Host& host);

}  // namespace trainyard
