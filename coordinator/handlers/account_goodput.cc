#include "coordinator/handlers/account_goodput.h"

#include <string>

#include "coordinator/core/turn.h"
#include "coordinator/policy/goodput.h"

namespace trainyard {

v1::GoodputRecord AccountedTo(const Job& job, absl::Time steady) {
  v1::GoodputRecord ledger = job.record.goodput();
  GoodputFacts facts{.state = job.state(), .generation = job.head().generation()};
  facts.makes_steps = !job.current.nothing_desired && job.current.store.sealed;
  const std::string phase = job.ranks.empty() ? "" : job.ranks.front().phase;
  facts.saves = phase == "save" || phase == "leaving";
  if (!IsFinal(job.state())) Account(PartOf(facts), absl::ToUnixMillis(steady), job.world_size(), ledger);
  return ledger;
}

void AccountGoodput(const Turn& turn, Job& job) { *job.record.mutable_goodput() = AccountedTo(job, turn.steady); }

}  // namespace trainyard
