#include "coordinator/handlers/hold_jobs.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/answer_for_job.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/hangs.h"
#include "coordinator/handlers/prune_finished.h"

namespace trainyard {
namespace {

bool RunsHeld(const Host& host, const JobId& id) {
  return std::any_of(host.held.begin(), host.held.end(),
                     [&](const v1::RunningTrainer& running) { return running.key().job_id() == id.value(); });
}

bool RunsUnknown(const Host& host, const JobId& id) {
  return std::any_of(host.unknown.begin(), host.unknown.end(),
                     [&](const v1::TrainerKey& key) { return key.job_id() == id.value(); });
}

// Records the number of the later generation, so that no generation gets it again.
void EndHold(Turn& turn, Job& job) {
  job.record.set_past_generation(std::max<uint64_t>(job.record.past_generation(), job.held_at));
  job.held_at = 0;
  turn.Save(job);
}

// Ends the recorded group if it may run; the job is queued again once the group has ended and the job is not held.
void StopRecordedGroup(Turn& turn, Job& job, std::string text) {
  switch (job.state()) {
    case v1::JOB_STATE_PLACED:
    case v1::JOB_STATE_STARTING:
    case v1::JOB_STATE_RUNNING:
      job.record.set_ending(v1::JobRecord::ENDING_RESTART);
      job.record.set_ending_reason(text);
      turn.Move(job, LifecycleEvent::kStopRequested, std::move(text));
      DropTrainers(turn, job);
      break;
    default:
      turn.SetReason(job, std::move(text));
  }
  turn.Save(job);
}

// Ends the group that the store has recorded. Those of its ranks that were not seen running had ended before the later
// generation, which the store did not know, was formed, or were never started.
void EndRecordedGroup(Turn& turn, Job& job, std::string text) {
  for (Rank& rank : job.ranks) {
    if (!rank.seen_running) MarkGone(turn, job, rank, "a later generation of the job ran after it");
  }
  job.current.unconfirmed.clear();
  StopRecordedGroup(turn, job, std::move(text));
}

}  // namespace

void HoldJob(Turn& turn, Host& host, Job& job, const v1::RunningTrainer& running) {
  host.held.push_back(running);
  if (job.held_at >= running.key().generation()) return;
  job.held_at = running.key().generation();
  const bool is_used_again = job.held_at == job.head().generation();
  const std::string found = is_used_again
                                ? std::string(" has started a group with this number on other hosts, which is ended")
                                : absl::StrCat("'s store knows ", job.head().generation());
  std::string text = absl::StrCat("host ", host.name.value(), " runs generation ", job.held_at,
                                  " of the job, and this coordinator", found,
                                  ": the store was restored from an older copy. The job is left alone: start "
                                  "the coordinator with the newer store, wait for the job's end, or cancel it");
  turn.Decide(job, DecisionRule::kAdoption, NoticeLevel::kError, text);
  // The end of that group is recorded now: if this coordinator restarts, it may not find the reason to hold the job.
  if (is_used_again) {
    StopRecordedGroup(turn, job, std::move(text));
  } else {
    turn.SetReason(job, std::move(text));
  }
  turn.PushAll(job);
}

void ResumeHeld(Turn& turn, Job& job) {
  if (job.held_at == 0) return;
  for (const auto& [name, host] : turn.state.hosts) {
    // A reachable host that has not attached yet may run the unknown generation, too.
    if (RunsHeld(host, job.id) || (job.current.unconfirmed.contains(name) && host.reachable)) return;
  }
  std::string text = absl::StrCat("generation ", job.held_at, ", which this coordinator's store did not know, has ",
                                  "ended; the job resumes from its checkpoints");
  EndHold(turn, job);
  turn.Decide(job, DecisionRule::kAdoption, NoticeLevel::kWarning, text);
  EndRecordedGroup(turn, job, std::move(text));
  RestartStallTimer(turn, job);
  turn.PushAll(job);
  turn.Touch(job);
  turn.ScheduleAll();
}

void ReleaseHeld(Turn& turn, Job& job) {
  if (job.held_at == 0) return;
  EndHold(turn, job);
  for (auto& [name, host] : turn.state.hosts) {
    auto is_of_job = [&](const v1::RunningTrainer& running) { return running.key().job_id() == job.id.value(); };
    for (const v1::RunningTrainer& running : host.held) {
      if (is_of_job(running)) host.strays.push_back(running.key());
    }
    if (std::erase_if(host.held, is_of_job) > 0) turn.Push(name);
  }
  turn.PushAll(job);
}

bool IsUnknown(const State& state, const v1::TrainerKey& key) {
  const JobId id(key.job_id());
  return !state.jobs.contains(id) && !state.forgotten_ids.contains(id);
}

void HoldUnknown(Turn& turn, Host& host, const v1::TrainerKey& key) {
  host.unknown.push_back(key);
  if (!turn.state.unknown.insert(JobId(key.job_id())).second) return;
  turn.DecideCluster(
      host.name, DecisionRule::kAdoption, NoticeLevel::kError,
      absl::StrCat("host ", host.name.value(), " runs job ", key.job_id(),
                   ", which this coordinator's store does not know: the store was restored from an older copy. "
                   "The job is left alone: start the coordinator with the newer store, wait for the job's "
                   "end, or end it with `trainctl cancel ",
                   key.job_id(), "`"));
}

void ForgetEndedUnknown(Turn& turn) {
  std::vector<JobId> ended;
  for (const JobId& id : turn.state.unknown) {
    if (HostsWithUnknown(turn.state, id).empty()) ended.push_back(id);
  }
  for (const JobId& id : ended) {
    turn.state.unknown.erase(id);
    turn.DecideCluster(HostName(), DecisionRule::kAdoption, NoticeLevel::kInfo,
                       absl::StrCat("job ", id.value(),
                                    ", which this coordinator's store does not know, has ended; its slots are free"));
  }
  if (!ended.empty()) turn.ScheduleAll();
}

std::vector<std::string> HostsWithUnknown(const State& state, const JobId& id) {
  std::vector<std::string> hosts;
  if (!state.unknown.contains(id)) return hosts;
  for (const auto& [name, host] : state.hosts) {
    if (RunsUnknown(host, id)) hosts.push_back(name.value());
  }
  return hosts;
}

std::optional<v1::Job> CancelUnknown(Turn& turn, const JobId& id, const std::string& reason) {
  const std::vector<std::string> hosts = HostsWithUnknown(turn.state, id);
  if (hosts.empty()) return std::nullopt;
  for (const std::string& name : hosts) {
    Host& host = turn.state.hosts.at(HostName(name));
    auto is_of_job = [&](const v1::TrainerKey& key) { return key.job_id() == id.value(); };
    std::copy_if(host.unknown.begin(), host.unknown.end(), std::back_inserter(host.strays), is_of_job);
    std::erase_if(host.unknown, is_of_job);
    turn.Push(host.name);
  }
  turn.state.unknown.erase(id);
  RememberForgotten(turn, id);  // in case a host is away, or the coordinator restarts before the trainers end
  std::string text = WithReason(absl::StrCat("job ", id.value(), ", which this coordinator's store does not know, is ",
                                             "cancelled; its trainers on ", absl::StrJoin(hosts, ", "), " are ended"),
                                reason);
  turn.DecideCluster(HostName(), DecisionRule::kOperator, NoticeLevel::kInfo, text);
  v1::Job job;
  job.set_job_id(id.value());
  job.set_state(v1::JOB_STATE_STOPPING);
  job.set_reason(std::move(text));
  return job;
}

}  // namespace trainyard
