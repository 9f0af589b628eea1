// State to records and back: the keys, what is in them, and how a coordinator that was restarted finds its state again.
// See proto/trainyard/v1/store.proto for the layout. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/state.h"

namespace trainyard {

inline constexpr uint32_t kRanksPerPart = 256;

inline constexpr char kClusterKey[] = "meta/cluster";

std::string RankPartKey(const JobId& job, uint64_t generation, uint32_t part);
std::string JobKey(const JobId& job);
std::string ToldKey(const JobId& job);

Record RankPartRecord(const Job& job, uint32_t part);
Record MakeJobRecord(const Job& job);
Record MakeToldRecord(const Job& job);
Record MakeHostRecord(const Host& host);

// Fills an empty `state` from all records of a store; what is soft stays empty. Hosts count as heard of at `now`, so
// that their leases run from the start of this coordinator. Possible errors: DataLoss: a record cannot be read, or the
// records contradict each other; the message names the key.
absl::Status LoadState(const std::vector<std::pair<std::string, std::string>>& records, absl::Time now, State& state);

// Rebuilds `ranks_on` and the local ranks from the ranks' hosts.
void IndexRanks(Job& job);

}  // namespace trainyard
