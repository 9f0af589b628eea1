#include "coordinator/handlers/strays.h"

#include <algorithm>

#include "coordinator/core/turn.h"

namespace trainyard {

bool SameTrainer(const v1::TrainerKey& a, const v1::TrainerKey& b) {
  return a.job_id() == b.job_id() && a.generation() == b.generation() && a.rank() == b.rank();
}

v1::TrainerKey& AddStray(Host& host, const Job& job, uint32_t rank) {
  v1::TrainerKey& key = host.strays.emplace_back();
  key.set_job_id(job.id.value());
  key.set_generation(job.head().generation());
  key.set_rank(rank);
  return key;
}

void ForgetStray(Turn& turn, Host& host, const v1::Fact& fact) {
  if (!host.unstarted_strays.empty()) {
    std::erase_if(host.unstarted_strays, [&](const auto& stray) { return SameTrainer(stray.first, fact.key()); });
  }
  if (!fact.has_exited()) return;
  auto stray = std::find_if(host.strays.begin(), host.strays.end(),
                            [&](const v1::TrainerKey& key) { return SameTrainer(key, fact.key()); });
  if (stray == host.strays.end()) return;
  host.strays.erase(stray);
  turn.ScheduleAll();
}

void ForgetUnstartedStrays(Turn& turn, Host& host) {
  for (const auto& [key, revision] : host.unstarted_strays) {
    if (host.applied_revision < revision) continue;
    std::erase_if(host.strays, [&key = key](const v1::TrainerKey& stray) { return SameTrainer(stray, key); });
    turn.ScheduleAll();
  }
  std::erase_if(host.unstarted_strays, [&](const auto& stray) { return host.applied_revision >= stray.second; });
}

}  // namespace trainyard
