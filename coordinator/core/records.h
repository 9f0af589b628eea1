// Converts the state to records and back: the keys, their values, and how a restarted coordinator loads its state.
// proto/trainyard/v1/store.proto has the layout. Pure.
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
// `job` empty: an event of the cluster.
std::string EventKey(const JobId& job, uint64_t sequence);

Record RankPartRecord(const Job& job, uint32_t part);
Record MakeJobRecord(Job& job);
Record MakePublishedRecord(const Job& job);
Record MakeHostRecord(const Host& host);
std::string HostKey(const HostName& host);
// Key of a job that was removed from the history (State::forgotten); the value is its id.
std::string ForgottenKey(uint64_t number);
// Returns the part of a job's reports that the event belongs to; none: it is neither a step nor an evaluation.
std::optional<uint64_t> ReportPartOf(const v1::Event& event);
// Makes the record of the reports of kStepsPerReportPart steps, from step `part` * kStepsPerReportPart on.
Record MakeReportPart(const Job& job, uint64_t part);

// Fills an empty `state` from all records of a store; soft fields stay empty. The last contact of each host counts as
// `now`, so that leases run from the start of this coordinator. Records without the record they belong to (a split
// commit that lost its end) count as not written; their keys are added to `state.orphans`.
// Possible errors: DataLoss: a record cannot be read, or records contradict each other; the message names the key.
absl::Status LoadState(const std::vector<std::pair<std::string, std::string>>& records, absl::Time now, State& state);

// Counts durable events of the job that are deleted, and records the greatest of their sequence numbers.
void CountDeleted(Job& job, const std::vector<uint64_t>& sequences);

// Rebuilds `ranks_on` and the local ranks from the hosts of the ranks.
void IndexRanks(Job& job);

}  // namespace trainyard
