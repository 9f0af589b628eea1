#include "coordinator/handlers/account_goodput.h"

#include "coordinator/core/turn.h"
#include "coordinator/policy/goodput.h"

namespace trainyard {

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

void AccountGoodput(const Turn& turn, Job& job) { *job.record.mutable_goodput() = AccountedTo(job, turn.steady); }

}  // namespace trainyard
