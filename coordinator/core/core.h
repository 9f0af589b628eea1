// The coordinator's event core: Handle(event, now) returns records to store and effects to release. It uses no thread,
// lock, clock, disk, network or randomness, so the loop can make everything durable before it is acknowledged, and
// tests/sim can run it in one thread. One thread feeds it (core_loop.h); handlers/ has a file per event, and policy/
// makes the decisions.
//
//   ASSIGN_OR_RETURN(auto core, Core::New({.cluster_id = id, .incarnation = incarnation}, records, now));
//   Output output = core->Handle(SubmitJob{...}, now);
//   ... commit output.records, then release output.effects
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/core_time.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"
#include "coordinator/core/state.h"

namespace trainyard {

// The values of gauges.
struct Totals {
  std::map<v1::JobState, uint64_t> jobs;
  uint64_t hosts_attached = 0;
  uint64_t hosts_unreachable = 0;
  uint64_t slots = 0;
  uint64_t slots_free = 0;
};

class Core {
 public:
  // `records` are all records of the store, empty when it is new.
  // Possible errors: DataLoss: the records cannot be read.
  static absl::StatusOr<std::unique_ptr<Core>> New(CoreOptions options,
                                                   const std::vector<std::pair<std::string, std::string>>& records,
                                                   absl::Time now);

  // Called once, before the first event: adopts the jobs of the store.
  Output Start(CoreTime time);
  // REQUIRES: `time.now` and `time.steady` are not earlier than those of the previous event.
  Output Handle(Event event, CoreTime time);

  Totals CountTotals() const;
  // Returns the ledgers of unfinished jobs, accounted up to `steady`.
  std::vector<std::pair<JobId, v1::GoodputRecord>> CountGoodput(absl::Time steady) const;
  const State& state() const { return state_; }
  // Checks every invariant of the state; the message names the first violation. Run after each event in debug builds.
  absl::Status Check() const;

 private:
  Core() = default;

  State state_;
};

}  // namespace trainyard
