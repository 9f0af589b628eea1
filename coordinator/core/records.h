// State to records and back: the keys, what is in them, and how a coordinator that was restarted finds its state again.
// See proto/trainyard/v1/store.proto for the layout. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/state.h"

namespace trainyard {

inline constexpr uint32_t kRanksPerPart = 16;
inline constexpr uint64_t kStepsPerReportPart = 256;

inline constexpr char kClusterKey[] = "meta/cluster";

std::string RankPartKey(const JobId& job, uint64_t generation, uint32_t part);
std::string JobKey(const JobId& job);
std::string PublishedKey(const JobId& job);
std::string ReportPartKey(const JobId& job, uint64_t part);
// `job` empty: of the cluster.
std::string EventKey(const JobId& job, uint64_t sequence);

Record RankPartRecord(const Job& job, uint32_t part);
Record MakeJobRecord(Job& job);
Record MakePublishedRecord(const Job& job);
Record MakeHostRecord(const Host& host);
std::string HostKey(const HostName& host);
// Of the id of a job that was pushed out of the history (State::forgotten); the value is the id.
std::string ForgottenKey(uint64_t number);
// The part of a job's reports that this one belongs to; none: it is neither a step nor an evaluation.
std::optional<uint64_t> ReportPartOf(const v1::Event& event);
// Reports of steps `part` * kStepsPerReportPart and on.
Record MakeReportPart(const Job& job, uint64_t part);

// Fills an empty `state` from all records of a store; what is soft stays empty. Hosts count as heard of at `now`, so
// that their leases run from the start of this coordinator. Records without the one they belong to (a commit that was
// split and lost its end) count as not written; their keys are left in `state.orphans`. Possible errors: DataLoss: a
// record cannot be read, or the records contradict each other; the message names the key.
absl::Status LoadState(const std::vector<std::pair<std::string, std::string>>& records, absl::Time now, State& state);

// Rebuilds `ranks_on` and the local ranks from the ranks' hosts.
void IndexRanks(Job& job);

}  // namespace trainyard
