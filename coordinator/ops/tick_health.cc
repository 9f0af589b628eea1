// What only time brings: leases that run out, graces that end, groups that do not form, marks written once a second.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/limits.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"
#include "coordinator/policy/health.h"

namespace trainyard {
namespace {

// A group that has made no progress in forming for so long will not form. Loading a model is seconds; a cold network
// file system tens of them.
constexpr absl::Duration kFormationLimit = absl::Seconds(120);
// A daemon that attached without a trainer it had tells its exit from the rank folder at once, if it can at all.
constexpr absl::Duration kMissingLimit = absl::Seconds(1);
constexpr absl::Duration kToldInterval = absl::Seconds(1);

v1::FailureRecord MakeFailure(v1::FailureRecord::Kind kind, std::string text) {
  v1::FailureRecord failure;
  failure.set_kind(kind);
  failure.set_text(std::move(text));
  return failure;
}

bool IsForming(const Job& job) {
  return job.state() == v1::JOB_STATE_PLACED || job.state() == v1::JOB_STATE_STARTING;
}

void HostLost(Turn& turn, Host& host, const std::string& reason) {
  turn.Warn(absl::StrCat("host ", host.name.value(), " is unreachable: ", reason, "; its trainers may go on"));
  std::vector<JobId> jobs(host.jobs.begin(), host.jobs.end());
  for (const JobId& id : jobs) {
    Job& job = turn.state.jobs.at(id);
    std::string text = absl::StrCat("host ", host.name.value(), " is unreachable: ", reason);
    // A group forms through its daemons, so without one it cannot; a group that steps needs none of them.
    if (IsForming(job)) {
      FailGeneration(turn, job, MakeFailure(v1::FailureRecord::KIND_HOST, text + " while the group formed"));
    } else if (job.state() == v1::JOB_STATE_RUNNING) {
      turn.Notice(job, "warning", text + "; its ranks may go on");
    }
    turn.Touch(job);
  }
  turn.ScheduleAll();
}

void JudgeHosts(Turn& turn) {
  for (auto& [name, host] : turn.state.hosts) {
    HostJudgement judged = JudgeHost(
        turn.now, {.attached = host.attached(), .last_heard = host.last_heard, .lease = turn.state.options.lease});
    if (judged.reachable == host.reachable) continue;
    host.reachable = judged.reachable;
    if (!judged.reachable) {
      HostLost(turn, host, judged.reason);
    } else {
      turn.Info(absl::StrCat("host ", name.value(), " is reachable again"));
      turn.ScheduleAll();
    }
  }
}

void EndMissingTrainers(Turn& turn, Job& job) {
  for (Rank& rank : job.ranks) {
    if (turn.now - rank.missing_since < kMissingLimit || rank.exited()) continue;
    rank.missing_since = absl::InfiniteFuture();
    v1::TrainerExited exit;
    exit.set_cause(v1::TrainerExited::CAUSE_LOST);
    exit.set_message("its host's daemon knows nothing of it any more");
    RankExited(turn, job, rank, exit);
  }
}

void JudgeFormation(Turn& turn, Job& job) {
  if (!IsForming(job) || turn.now - job.progress_at < kFormationLimit) return;
  std::vector<std::string> missing;
  for (const Rank& rank : job.ranks) {
    if (rank.record.ready()) continue;
    if (missing.size() == 3) {
      missing.push_back("...");
      break;
    }
    missing.push_back(absl::StrCat(rank.record.rank(), " on ", rank.record.host(), " (", rank.phase, ")"));
  }
  FailGeneration(turn, job,
                 MakeFailure(v1::FailureRecord::KIND_FORMATION,
                             absl::StrCat("the group did not form: no progress for ",
                                          absl::FormatDuration(kFormationLimit), ", not ready: rank ",
                                          absl::StrJoin(missing, ", rank "))));
}

void TickJob(Turn& turn, Job& job) {
  EndMissingTrainers(turn, job);
  JudgeFormation(turn, job);
  if (turn.now >= job.drop_at) {
    if (job.state() == v1::JOB_STATE_STOPPING && job.record.cancelled() && !job.record.has_failure()) {
      turn.Notice(job, "warning", "the ranks did not stop in time; they are killed");
    }
    DropTrainers(turn, job);
  }
  // A stop that was under way when the coordinator was restarted gets its grace anew.
  if (job.stop && !job.nothing_desired && job.drop_at == absl::InfiniteFuture()) {
    job.drop_at = turn.now + limits::kStopGrace;
  }
  if (turn.now >= job.reports_until) turn.Touch(job);
  if (job.state() == v1::JOB_STATE_RECOVERING) {
    turn.Touch(job);
    if (turn.state.queue.contains(job.record.submit_index()) && turn.now >= job.restart_at &&
        job.restart_at != absl::InfinitePast()) {
      job.restart_at = absl::InfinitePast();
      turn.Schedule(job);
    }
  }
}

void EndReaders(Turn& turn) {
  std::vector<ReaderId> ended;
  for (const auto& [id, reader] : turn.state.readers) {
    if (turn.now >= reader.close_at) ended.push_back(id);
  }
  for (ReaderId id : ended) CloseLogReader(turn, id, absl::OkStatus());
}

}  // namespace

void Run(Turn& turn, Tick& event) {
  State& state = turn.state;
  for (const Tick::Heard& heard : event.heard) {
    auto session = state.sessions.find(heard.session);
    if (session != state.sessions.end()) {
      Host& host = state.hosts.at(session->second);
      host.last_heard = std::max(host.last_heard, heard.time);
    }
  }
  JudgeHosts(turn);
  std::vector<JobId> active(state.active.begin(), state.active.end());
  for (const JobId& id : active) TickJob(turn, state.jobs.at(id));
  EndReaders(turn);
  if (turn.now - state.told_saved_at >= kToldInterval) {
    state.told_saved_at = turn.now;
    for (const JobId& id : active) {
      if (state.jobs.at(id).told_changed) turn.SaveTold(state.jobs.at(id));
    }
  }
}

}  // namespace trainyard
