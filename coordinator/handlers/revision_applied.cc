// RevisionApplied: a host has applied a desired state. The daemon reports this after its facts, so a trainer that is
// not in this desired state and has not reported `started` will never start.
#include "coordinator/core/turn.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/strays.h"

namespace trainyard {

void Run(Turn& turn, RevisionApplied& event) {
  auto session = turn.state.sessions.find(event.session);
  if (session == turn.state.sessions.end()) return;
  Host& host = turn.state.hosts.at(session->second);
  host.applied_revision = event.revision;
  ForgetUnstartedStrays(turn, host);
  for (const JobId& id : host.jobs) {
    Job& job = turn.state.jobs.at(id);
    if (!job.current.nothing_desired) continue;
    for (uint32_t index : job.ranks_on[host.name]) {
      Rank& rank = job.ranks[index];
      bool never_started = !rank.record.started() && !rank.seen_running && !rank.ended();
      if (!never_started || rank.removed_at_revision == 0 || event.revision < rank.removed_at_revision) continue;
      MarkGone(turn, job, rank, "never started");
    }
  }
}

}  // namespace trainyard
