// Get, List and GetServerInfo: the state as the API tells it. They change nothing.
#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/limits.h"
#include "common/version.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/check_request.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/policy/goodput.h"
#include "coordinator/policy/placement.h"
#include "coordinator/policy/recovery.h"

namespace trainyard {
namespace {

constexpr uint32_t kPageDefault = 100;
constexpr char kJobsToken[] = "before-";

v1::RankStatus MakeRankStatus(const Job& job, const Rank& rank, absl::Time now) {
  v1::RankStatus status;
  status.set_rank(rank.record.rank());
  status.set_host(rank.record.host());
  status.set_generation(job.head().generation());
  status.set_phase(rank.ended() ? "ended" : rank.phase);
  status.set_last_step(rank.last_step);
  if (rank.last_report > absl::InfinitePast()) {
    status.set_last_report_age_s(absl::ToDoubleSeconds(std::max(now - rank.last_report, absl::ZeroDuration())));
  }
  status.set_pid(rank.record.pid());
  status.set_phase_s(rank.stand.phase_s);
  for (const v1::CommunicatorReport& communicator : rank.stand.communicators) {
    if (!rank.exited() && !communicator.waits_in().empty()) status.set_waits_in(communicator.waits_in());
  }
  status.set_compute_s(rank.computing.StepSeconds());
  status.set_straggler(rank.straggler);
  status.set_wait_share(rank.computing.WaitShare());
  for (const v1::MemoryUse& use : rank.memory) *status.add_memory() = use;
  status.set_max_rss_bytes(rank.record.exit().max_rss_bytes());
  status.set_user_s(rank.record.exit().user_s());
  status.set_system_s(rank.record.exit().system_s());
  if (rank.exited()) status.set_exit(TellExit(rank.record.exit()));
  if (!rank.exited()) status.set_exit(rank.record.gone());
  return status;
}

// What a list tells: without what grows with the job.
v1::Job MakeHead(const Job& job) {
  v1::Job head = job.head();
  head.clear_checkpoints();
  head.clear_decisions();
  head.set_last_step(std::max(head.last_step(), job.told.step()));
  head.set_last_loss(job.told.loss());
  head.set_unconfirmed(!job.unconfirmed.empty());
  head.set_events_dropped(job.record.events_dropped());
  return head;
}

}  // namespace

v1::Job MakeJob(const Turn& turn, const Job& job) {
  v1::Job message = MakeHead(job);
  *message.mutable_checkpoints() = job.head().checkpoints();
  for (const v1::CheckpointGrant& word : job.record.grants()) {
    const uint64_t newest = message.checkpoints().empty() ? 0 : message.checkpoints().rbegin()->step();
    if (word.refused() || word.step() <= newest) continue;
    v1::CheckpointInfo& info = *message.add_checkpoints() = MakeInfo(word);
    info.set_unconfirmed(true);
  }
  *message.mutable_goodput() = MakeGoodput(AccountedTo(job, turn.steady));
  *message.mutable_decisions() = job.head().decisions();
  for (const Rank& rank : job.ranks) *message.add_ranks() = MakeRankStatus(job, rank, turn.now);
  return message;
}

void Run(Turn& turn, GetJob& event) {
  auto it = turn.state.jobs.find(event.job);
  if (it == turn.state.jobs.end()) {
    turn.Emit(Reply{event.call, NoSuchJob(turn.state, event.job.value()), {}});
    return;
  }
  turn.Emit(Reply{event.call, absl::OkStatus(), MakeJob(turn, it->second)});
}

void Run(Turn& turn, ListJobs& event) {
  const v1::ListRequest& request = event.request;
  uint64_t before = turn.state.next_submit_index;
  absl::string_view token = request.page_token();
  if (!token.empty() && (!absl::ConsumePrefix(&token, kJobsToken) || !absl::SimpleAtoi(token, &before))) {
    turn.Emit(Reply{event.call,
                    absl::InvalidArgumentError(absl::StrCat("page_token '", request.page_token().substr(0, 64),
                                                            "' is not one of ours; leave it empty for the first page")),
                    {}});
    return;
  }
  uint32_t size = request.page_size() == 0 ? kPageDefault : std::min(request.page_size(), kJobsPageMax);
  v1::ListResponse response;
  const auto& order = turn.state.by_submission;
  for (auto it = order.lower_bound(before); it != order.begin();) {
    --it;
    const Job& job = turn.state.jobs.at(it->second);
    const auto& states = request.states();
    if (!states.empty() && std::count(states.begin(), states.end(), job.state()) == 0) continue;
    if (response.jobs_size() == static_cast<int>(size)) {
      // The page is full and there is more: the next one starts below the last job of this one.
      auto last = turn.state.jobs.find(JobId(response.jobs(response.jobs_size() - 1).job_id()));
      response.set_next_page_token(absl::StrCat(kJobsToken, last->second.record.submit_index()));
      break;
    }
    *response.add_jobs() = MakeHead(job);
  }
  turn.Emit(Reply{event.call, absl::OkStatus(), std::move(response)});
}

void Run(Turn& turn, GetServerInfo& event) {
  v1::ServerInfo info;
  info.set_version(kVersion);
  info.set_protocol(limits::kProtocol);
  info.set_cluster_id(turn.state.options.cluster_id);
  info.set_started_unix_ms(absl::ToUnixMillis(turn.state.started_at));
  for (const HostSlots& host : FreeSlots(turn.state)) {
    info.set_hosts(info.hosts() + 1);
    info.set_slots(info.slots() + host.slots);
    info.set_slots_free(info.slots_free() + host.free);
  }
  info.set_jobs_unfinished(static_cast<uint32_t>(turn.state.jobs.size() - turn.state.finished.size()));
  turn.Emit(Reply{event.call, absl::OkStatus(), std::move(info)});
}

}  // namespace trainyard
