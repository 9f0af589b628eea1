// The desired state of one host: everything that the host should run, complete each time. It is made from the jobs with
// ranks on the host. Pure, except for MarkRemoved.
#pragma once

#include "coordinator/core/state.h"

namespace trainyard {

// The key of a job's decision about its device, and the value for GPUs.
inline constexpr char kDeviceKey[] = "resources.device";
inline constexpr char kCudaValue[] = "cuda";

// Returns the device of the job's ranks: that of the spec, or else the one chosen with the placement.
v1::Device DeviceOf(const Job& job);

// Returns whether the job is a command without a value for resources.device. Its resolved spec and a decision then say
// cpu, but the command chooses its device itself, so it may use the GPUs of its hosts.
bool ChoosesDeviceItself(const Job& job);

// Returns the threads of one trainer: those of the spec, or else an equal share of the host's cores, at least 1.
uint32_t ThreadsPerRank(const Job& job, const Host& host, uint32_t local_world_size);

// Returns the desired state with the host's current revision.
v1::CoordinatorMessage MakeDesired(const State& state, const Host& host);

// Sets Rank::removed_at_revision to the host's current revision for each rank that has left the desired state: once the
// host has applied that revision, the trainer of the rank is gone or being ended.
void MarkRemoved(State& state, const Host& host);

}  // namespace trainyard
