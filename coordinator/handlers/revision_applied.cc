// A host has applied a desired state. The daemon tells this in order behind its facts, so a trainer that this revision
// lacks and that never said `started` never will.
#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"

namespace trainyard {
namespace {

bool IsTrainer(const v1::TrainerKey& a, const v1::TrainerKey& b) {
  return a.job_id() == b.job_id() && a.generation() == b.generation() && a.rank() == b.rank();
}

// Strays that never were started hold no slot any more.
void ForgetUnheard(Turn& turn, Host& host) {
  for (const auto& [key, revision] : host.unheard) {
    if (host.applied_revision < revision) continue;
    std::erase_if(host.strays, [&key = key](const v1::TrainerKey& stray) { return IsTrainer(stray, key); });
    turn.ScheduleAll();
  }
  std::erase_if(host.unheard, [&](const auto& unheard) { return host.applied_revision >= unheard.second; });
}

}  // namespace

void Run(Turn& turn, RevisionApplied& event) {
  auto session = turn.state.sessions.find(event.session);
  if (session == turn.state.sessions.end()) return;
  Host& host = turn.state.hosts.at(session->second);
  host.applied_revision = event.revision;
  ForgetUnheard(turn, host);
  for (const JobId& id : host.jobs) {
    Job& job = turn.state.jobs.at(id);
    if (!job.nothing_desired) continue;
    for (uint32_t index : job.ranks_on[host.name]) {
      Rank& rank = job.ranks[index];
      bool never_started = !rank.record.started() && !rank.seen_running && !rank.ended();
      if (!never_started || rank.removed_at_revision == 0 || event.revision < rank.removed_at_revision) continue;
      MarkGone(turn, job, rank, "never started");
    }
  }
}

}  // namespace trainyard
