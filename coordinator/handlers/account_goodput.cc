#include "coordinator/handlers/account_goodput.h"

#include "coordinator/core/turn.h"
#include "coordinator/policy/goodput.h"

namespace trainyard {
namespace {

// Smaller changes of the wall clock, for example by a time service that adjusts its speed, are not worth a write.
constexpr absl::Duration kClockChange = absl::Seconds(5);

}  // namespace

v1::GoodputRecord AccountedTo(const Job& job, absl::Time steady) {
  v1::GoodputRecord ledger = job.record.goodput();
  GoodputFacts facts{.state = job.state(), .generation = job.head().generation()};
  facts.makes_steps = !job.current.nothing_desired && job.current.store.sealed;
  if (!job.ranks.empty()) {
    const ReportedPhase& phase = job.ranks.front().phase;
    facts.saves = phase == Phase::kSave || phase == Phase::kLeaving;
  }
  if (!IsFinal(job.state())) Account(CurrentPart(facts), absl::ToUnixMillis(steady), job.world_size(), ledger);
  return ledger;
}

void AccountGoodput(const Turn& turn, Job& job) {
  if (IsFinal(job.state())) return;
  *job.record.mutable_goodput() = AccountedTo(job, turn.steady);
  job.record.mutable_goodput()->set_wall_ahead_ms(absl::ToInt64Milliseconds(turn.wall - turn.steady));
}

void RecordSetWallClock(Turn& turn) {
  const absl::Duration ahead = turn.wall - turn.steady;
  if (absl::AbsDuration(ahead - turn.state.wall_ahead) < kClockChange) return;
  turn.state.wall_ahead = ahead;
  for (auto& [id, job] : turn.state.jobs) {
    if (IsFinal(job.state())) continue;
    AccountGoodput(turn, job);
    turn.Save(job);
  }
}

}  // namespace trainyard
