#include "coordinator/handlers/preempt_jobs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/plural.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/policy/saves.h"

namespace trainyard {
namespace {

// The protection of a job doubles with each preemption, at most this many times.
constexpr uint32_t kDoublingsMax = 3;

std::string Describe(const Job& job) {
  return absl::StrCat("job ", job.id.value(), " (", job.head().spec().name(), ", priority ", job.priority(), ")");
}

std::string Rounded(absl::Duration duration) { return absl::FormatDuration(absl::Ceil(duration, absl::Seconds(1))); }

}  // namespace

void PreemptJobs(Turn& turn, Job& job, const std::vector<JobId>& victims) {
  std::vector<std::string> names;
  for (const JobId& id : victims) {
    Job& victim = turn.state.jobs.at(id);
    names.push_back(absl::StrCat(Describe(victim), " with ", Plural(victim.ranks.size(), "rank")));
    job.record.add_preempting(id.value());
    victim.head().set_preempted_by(job.id.value());
    victim.head().set_preemptions(victim.head().preemptions() + 1);
    ++turn.state.preemptions[victim.namespace_name()];
    EndGroup(turn, victim, v1::JobRecord::ENDING_PREEMPT,
             absl::StrCat("preempted by ", Describe(job), "; this job has priority ", victim.priority(),
                          " and waits until enough slots are free for it"),
             /*now=*/false, DecisionRule::kPreemption);
  }
  turn.state.preempting.insert(job.record.submit_index());
  turn.Decide(job, DecisionRule::kPreemption, NoticeLevel::kInfo,
              absl::StrCat("this job of priority ", job.priority(), " preempts ", JoinFirst(names, 8)));
  turn.Save(job);
}

std::vector<JobId> EndingFor(const State& state, const Job& job) {
  std::vector<JobId> ending;
  for (const std::string& id : job.record.preempting()) {
    const auto victim = state.jobs.find(JobId(id));
    if (victim != state.jobs.end() && victim->second.state() == v1::JOB_STATE_STOPPING) ending.emplace_back(id);
  }
  return ending;
}

void ForgetVictims(Turn& turn, Job& job) {
  if (job.record.preempting().empty() || !EndingFor(turn.state, job).empty()) return;
  job.record.clear_preempting();
  turn.state.preempting.erase(job.record.submit_index());
  turn.Save(job);
}

void EndPreempted(Turn& turn, Job& job, std::string reason) {
  job.record.clear_admitted();
  job.record.clear_failed_preemptions();
  job.record.clear_spared_until_unix_ms();
  job.spared_until = absl::InfinitePast();
  const auto step = NewestResumeStep(job.head(), job.record.grants());
  if (step.has_value()) absl::StrAppend(&reason, "; it resumes from step ", *step);
  turn.Move(job, LifecycleEvent::kEndedPreempted, std::move(reason));
  turn.PushAll(job);  // its snapshots are removed
  turn.ScheduleAll();
}

std::string SparePreempted(Turn& turn, Job& job, const std::string& why) {
  const uint32_t doublings = std::min(job.record.failed_preemptions(), kSpareDoublings);
  const absl::Duration spare = kSpareTime * (1 << doublings);
  job.record.set_failed_preemptions(job.record.failed_preemptions() + 1);
  job.spared_until = turn.now + spare;
  job.record.set_spared_until_unix_ms(absl::ToUnixMillis(job.spared_until));
  job.head().clear_preempted_by();
  turn.ScheduleAll();  // another job may be preempted
  return absl::StrCat("the job was not preempted: ", why,
                      "; training continues, and the job is not preempted again for ", Rounded(spare));
}

std::string ProtectionOf(const Turn& turn, const Job& job) {
  const QueueRules& rules = turn.state.options.queue;
  const std::string name = absl::StrCat("job ", job.id.value());
  const v1::JobSpec& spec = job.head().spec();
  if (spec.has_probe()) return absl::StrCat(name, " measures hosts");
  if (spec.has_command() && !rules.preempts_commands) return absl::StrCat(name, " is a command");
  if (job.held_at != 0 || !job.current.unconfirmed.empty())
    return absl::StrCat(name, " waits for its hosts to connect");
  for (const auto& [host_name, ranks] : job.ranks_on) {
    const auto host = turn.state.hosts.find(host_name);
    if (host == turn.state.hosts.end() || !host->second.attached() || !host->second.reachable) {
      return absl::StrCat("a host of ", name, " is unreachable");
    }
  }
  if (job.state() != v1::JOB_STATE_RUNNING) return absl::StrCat(name, " is starting");
  const bool any_ended = std::any_of(job.ranks.begin(), job.ranks.end(),
                                     [](const Rank& rank) { return rank.ended() || rank.record.finished(); });
  if (any_ended || job.record.has_failure() || job.current.nothing_desired) return absl::StrCat(name, " is ending");
  if (turn.now < job.spared_until) {
    return absl::StrCat("the save of ", name, " failed, so it is spared for ", Rounded(job.spared_until - turn.now));
  }
  const absl::Duration needed = rules.min_run * (1 << std::min(job.head().preemptions(), kDoublingsMax));
  const absl::Duration ran = turn.now - job.current.running_since;
  if (ran < needed) return absl::StrCat(name, " is protected for ", Rounded(needed - ran));
  return "";
}

}  // namespace trainyard
