#include "coordinator/handlers/begin_generation.h"

#include <algorithm>

#include "coordinator/core/records.h"
#include "coordinator/handlers/abandon_job.h"
#include "coordinator/policy/recovery.h"

namespace trainyard {
namespace {

void ForgetGeneration(Turn& turn, Job& job) {
  for (const auto& [name, ranks] : job.ranks_on) {
    auto host = turn.state.hosts.find(name);
    if (host == turn.state.hosts.end()) continue;
    host->second.jobs.erase(job.id);
    turn.Push(name);  // a host without ranks of the next generation releases the job's memory
  }
  for (size_t rank = 0; rank < job.ranks.size(); rank += kRanksPerPart) {
    turn.Delete(RankPartKey(job.id, job.head().generation(), static_cast<uint32_t>(rank / kRanksPerPart)));
  }
}

void SetRanks(Turn& turn, Job& job, const std::vector<HostName>& hosts) {
  job.ranks.assign(hosts.size(), Rank());
  for (size_t i = 0; i < hosts.size(); ++i) {
    job.ranks[i].record.set_rank(static_cast<uint32_t>(i));
    job.ranks[i].record.set_host(hosts[i].value());
    turn.SaveRank(job, static_cast<uint32_t>(i));
  }
  job.record.set_rank_count(hosts.size());
  IndexRanks(job);
  for (const auto& [name, ranks] : job.ranks_on) turn.state.hosts.at(name).jobs.insert(job.id);
}

}  // namespace

void BeginGeneration(Turn& turn, Job& job, const std::vector<HostName>& hosts) {
  v1::Job& head = job.head();
  const bool uses_restart = job.state() == v1::JOB_STATE_RECOVERING && CountsAsRestart(job.record.failure().kind());
  ForgetGeneration(turn, job);
  // The new number is above the numbers of all generations that ran, including one that this store did not know.
  head.set_generation(std::max(head.generation(), job.record.past_generation()) + 1);
  if (uses_restart) head.set_restarts(head.restarts() + 1);
  head.set_planned_restarts(static_cast<uint32_t>(head.generation() - 1 - head.restarts()));
  head.set_unreachable(false);
  job.record.clear_failure();
  job.record.clear_stop_requests();
  job.left_slots = false;
  job.left_memory = false;
  // A save that was requested and not made yet is requested from the new group once. Any save of this group answers the
  // request, because the group may begin with an earlier step than that of the request.
  job.record.set_save_requests(job.record.save_awaited() ? 1 : 0);
  job.record.clear_save_asked_step();
  EndPathQueries(turn, job);
  job.current = GenerationState();
  job.current.nothing_desired = false;
  job.current.progress_at = turn.now;
  SetRanks(turn, job, hosts);
}

}  // namespace trainyard
