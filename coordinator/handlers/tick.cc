// Tick: handles what depends on time alone: leases that expire, grace periods that end, groups that do not form,
// records that are written once a second.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/limits.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/account_goodput.h"
#include "coordinator/handlers/advance_job.h"
#include "coordinator/handlers/avoid_hosts.h"
#include "coordinator/handlers/dropped_reports.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/hangs.h"
#include "coordinator/handlers/hold_jobs.h"
#include "coordinator/handlers/host_health.h"
#include "coordinator/handlers/last_save.h"
#include "coordinator/handlers/late_reports.h"
#include "coordinator/handlers/log_readers.h"
#include "coordinator/handlers/lose_hosts.h"
#include "coordinator/handlers/network_health.h"
#include "coordinator/handlers/queue_facts.h"
#include "coordinator/handlers/slots.h"
#include "coordinator/handlers/stragglers.h"
#include "coordinator/handlers/strays.h"
#include "coordinator/handlers/watch_commands.h"
#include "coordinator/policy/placement.h"
#include "coordinator/policy/recovery.h"

namespace trainyard {
namespace {

// A group that has made no progress in forming for this time will not form.
constexpr absl::Duration kFormationLimit = absl::Seconds(120);
// A daemon whose Hello lacks one of its trainers reports that trainer's exit immediately, if the rank folder has an
// exit record. A trainer whose exit was not reported within this time counts as lost.
constexpr absl::Duration kMissingLimit = absl::Seconds(1);
constexpr absl::Duration kPublishedInterval = absl::Seconds(1);
// A process that SIGKILL does not end (blocked in the kernel) counts as gone after this time; its slot stays in use.
constexpr absl::Duration kKillLimit = absl::Seconds(30);
// A rank that has reported its last step exits within this time, or is killed; the job has succeeded in both cases.
constexpr absl::Duration kLeaveLimit = limits::kStopGrace;

void EndMissingTrainers(Turn& turn, Job& job) {
  for (Rank& rank : job.ranks) {
    if (turn.now - rank.missing_since < kMissingLimit || rank.exited()) continue;
    rank.missing_since = absl::InfiniteFuture();
    v1::TrainerExited exit;
    exit.set_cause(v1::TrainerExited::CAUSE_LOST);
    exit.set_message("its host's daemon no longer knows it");
    RankExited(turn, job, rank, exit);
  }
}

// Whether ranks tokenize data or load weights. There is no time limit for that here, because the time depends on the
// files and the ranks limit it themselves. Every such rank must have reported within kFormationLimit.
bool IsReadingFiles(const Turn& turn, const Job& job) {
  bool reads = false;
  for (const Rank& rank : job.ranks) {
    if (rank.phase != Phase::kTokenize && rank.phase != Phase::kLoad) continue;
    if (turn.now - rank.last_report >= kFormationLimit) return false;
    reads = true;
  }
  return reads;
}

// Ranks of a command are not started before the check of their host has ended, which has a time limit of its own.
absl::Duration FormationLimit(const Job& job) {
  const v1::CommandCheck& check = job.head().spec().command().check();
  return check.argv_size() == 0 ? kFormationLimit : kFormationLimit + absl::Seconds(check.time_limit_s());
}

void CheckFormation(Turn& turn, Job& job) {
  if (!job.forming() || turn.now - job.current.progress_at < FormationLimit(job) || IsReadingFiles(turn, job)) return;
  // While a host of the job cannot be reached, forming waits for the host; policy/host_loss decides how long.
  bool waits = std::any_of(job.ranks_on.begin(), job.ranks_on.end(), [&](const auto& host_ranks) {
    auto host = turn.state.hosts.find(host_ranks.first);
    return host == turn.state.hosts.end() || !host->second.reachable;
  });
  if (waits || !job.current.unconfirmed.empty()) return;
  std::vector<std::string> missing;
  for (const Rank& rank : job.ranks) {
    if (rank.record.ready()) continue;
    if (missing.size() == 3) {
      missing.push_back("...");
      break;
    }
    missing.push_back(absl::StrCat(rank.record.rank(), " on ", rank.record.host(), " (", rank.phase.name(), ")"));
  }
  FailGeneration(
      turn, job,
      MakeFailure(v1::FailureRecord::KIND_FORMATION,
                  absl::StrCat("the group did not form: no progress for ", absl::FormatDuration(FormationLimit(job)),
                               ", not ready: rank ", absl::StrJoin(missing, ", rank "))));
}

void EndUnkillable(Turn& turn, Job& job) {
  if (!job.current.nothing_desired) return;
  // The program of a command has a grace period before its daemon sends SIGKILL; other trainers have none.
  const absl::Duration limit = kKillLimit + absl::Seconds(job.head().spec().command().grace_s());
  for (Rank& rank : job.ranks) {
    if (rank.ended() || rank.removed_at_revision == 0) continue;
    auto host = turn.state.hosts.find(rank.host());
    if (host == turn.state.hosts.end() || !host->second.attached() ||
        host->second.applied_revision < rank.removed_at_revision) {
      continue;
    }
    if (rank.dropped_at == absl::InfiniteFuture()) rank.dropped_at = turn.now;
    if (turn.now - rank.dropped_at < limit) continue;
    AddStray(host->second, job, rank.record.rank());
    std::string why =
        absl::StrCat("rank ", rank.record.rank(), " on ", rank.record.host(), " was not ended by SIGKILL in ",
                     absl::FormatDuration(limit), "; it counts as gone and its slot as in use");
    turn.Notice(job, NoticeLevel::kError, why);
    MarkGone(turn, job, rank, std::move(why));
  }
}

// Returns "rank 1 on w2 (its process has ended, but its shim did not report it)".
std::string DescribeRank(const Turn& turn, const Rank& rank) {
  std::string text = absl::StrCat("rank ", rank.record.rank(), " on ", rank.record.host());
  auto host = turn.state.hosts.find(rank.host());
  const std::string& state = rank.position.process_state;
  if (host == turn.state.hosts.end() || !host->second.reachable) return absl::StrCat(text, " (host unreachable)");
  if (state == "Z") return absl::StrCat(text, " (its process has ended, but its shim did not report it)");
  return state.empty() ? text : absl::StrCat(text, " (state ", state, ")");
}

// Kills ranks that have reported their last step, but do not exit.
void KillRemaining(Turn& turn, Job& job) {
  if (turn.now - job.current.finished_at < kLeaveLimit || job.current.nothing_desired || AllEnded(job)) return;
  std::vector<std::string> remaining;
  for (const Rank& rank : job.ranks) {
    if (rank.ended()) continue;
    remaining.push_back(remaining.size() < 3 ? DescribeRank(turn, rank) : "...");
    if (remaining.size() > 3) break;
  }
  turn.Notice(
      job, NoticeLevel::kWarning,
      absl::StrCat("every rank has made all steps, but some did not exit within ", absl::FormatDuration(kLeaveLimit),
                   ": ", absl::StrJoin(remaining, ", "), "; the rest of the group is killed"));
  DropTrainers(turn, job);
}

// Whether a stop still waits, at the latest until drop_by, for ranks that evaluate, save, or wait until a checkpoint is
// renamed (kLeaving).
bool MayStillStop(const Turn& turn, const Job& job) {
  if (!job.current.stop) return false;
  // A stop that must not lose steps waits until the ranks give up saving, which they do on their own.
  if (!job.record.cancelled() && LastSaveIsRetried(job)) return true;
  if (turn.now >= job.current.drop_by) return false;
  return std::any_of(job.ranks.begin(), job.ranks.end(), [&](const Rank& rank) {
    bool busy = rank.phase == Phase::kSave || rank.phase == Phase::kEvaluate || rank.phase == Phase::kLeaving;
    return !rank.ended() && busy && turn.now - rank.last_report <= turn.state.options.lease;
  });
}

// Called when the grace of a stop has passed. A cancellation with a save is undone, because the ranks have not saved;
// any other stop ends with the death of the ranks.
void EndGrace(Turn& turn, Job& job) {
  const bool is_stopping = job.state() == v1::JOB_STATE_STOPPING && job.current.stop && !job.current.nothing_desired;
  if (is_stopping && !job.record.has_failure()) {
    if (IsCancelAwaitingSave(job)) {
      UndoStop(turn, job, "the ranks did not stop in time");
      job.current.stop_overdue = true;
      return;
    }
    turn.Notice(job, NoticeLevel::kWarning, "the ranks did not stop in time; they are killed");
  }
  DropTrainers(turn, job);
}

void TickJob(Turn& turn, Job& job) {
  if (job.held_at != 0) return ResumeHeld(turn, job);
  EndMissingTrainers(turn, job);
  PublishDroppedReports(turn, job);
  CheckLostHosts(turn, job);
  CheckFormation(turn, job);
  EndUnkillable(turn, job);
  KillRemaining(turn, job);
  LimitTime(turn, job);
  if (turn.now >= job.current.drop_at && !MayStillStop(turn, job)) EndGrace(turn, job);
  // A stop that was under way when the coordinator restarted gets its full grace period again.
  if (job.current.stop && !job.current.nothing_desired && job.current.drop_at == absl::InfiniteFuture()) {
    job.current.drop_at = turn.now + StopGrace(job);
    job.current.drop_by = turn.now + MaxStopGrace(job);
  }
  if (turn.now >= job.current.reports_until) turn.Touch(job);
  if (job.state() == v1::JOB_STATE_RECOVERING) {
    turn.Touch(job);
    if (turn.state.queue.contains(job.record.submit_index()) && turn.now >= job.restart_at &&
        job.restart_at != absl::InfinitePast()) {
      job.restart_at = absl::InfinitePast();
      turn.Schedule(job);
    }
  }
}

// Whether the priority of a waiting job lets it preempt a running one.
bool AnyPriorityIsHigher(const State& state) {
  uint32_t lowest = UINT32_MAX - kPriorityMax;  // if no job runs; the sum below does not overflow
  for (const JobId& id : state.active) {
    const Job& job = state.jobs.at(id);
    if (job.state() == v1::JOB_STATE_RUNNING) lowest = std::min(lowest, job.priority());
  }
  const uint32_t needed = lowest + state.options.queue.min_priority_difference;
  return std::any_of(state.queue.begin(), state.queue.end(),
                     [&](uint64_t index) { return state.jobs.at(state.by_submission.at(index)).priority() >= needed; });
}

// Schedules jobs whose avoided hosts may be used again, frees the slots and later the snapshots of groups that were not
// formed again in time, and marks jobs that have waited so long that no job may overtake them.
void MarkOverdue(Turn& turn) {
  const QueueRules& rules = turn.state.options.queue;
  for (uint64_t index : turn.state.queue) {
    Job& job = turn.state.jobs.at(turn.state.by_submission.at(index));
    ScheduleIfAvoidanceEnded(turn, job);
    const absl::Duration waited = turn.now - job.waiting_since;
    if (waited >= kKeepSlots && KeepsSlots(job)) {
      job.left_slots = true;
      turn.ScheduleAll();
    }
    if (waited >= kKeepSnapshots && job.left_slots && !std::exchange(job.left_memory, true)) turn.PushAll(job);
    if (waited < rules.overtake || !turn.state.overdue.insert(index).second) continue;
    turn.Info(absl::StrCat("job ", job.id.value(), " has waited for ", absl::FormatDuration(rules.overtake),
                           ": from now on, no job behind it in the queue gets slots that it could use"));
    turn.ScheduleAll();
  }
  // Until the hosts had time to connect, jobs may have waited for them. No event reports that a host has not come back.
  if (!turn.state.hosts_had_time && HostsHadTime(turn)) {
    turn.state.hosts_had_time = true;
    turn.ScheduleAll();
  }
  // With time, running jobs lose their protection from preemption, and no event reports that.
  if (rules.preemption && AnyPriorityIsHigher(turn.state)) turn.ScheduleAll();
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
  RecordSetWallClock(turn);
  for (const Tick::Contact& contact : event.contacts) {
    auto session = state.sessions.find(contact.session);
    if (session != state.sessions.end()) {
      Host& host = state.hosts.at(session->second);
      RecordContact(turn, host, contact.time);
      RecordHeartbeat(turn, host, contact);
    }
  }
  UpdateReachability(turn);
  std::vector<JobId> active(state.active.begin(), state.active.end());
  for (const JobId& id : active) TickJob(turn, state.jobs.at(id));
  // The checks above may have ended jobs.
  const std::vector<JobId> still_active(state.active.begin(), state.active.end());
  for (const JobId& id : still_active) {
    Job& job = state.jobs.at(id);
    CheckHang(turn, job);
    CheckStragglers(turn, job);
    CheckNetwork(turn, job);
  }
  EndReaders(turn);
  ReleaseDelayedAcks(turn);
  if (turn.now - state.published_saved_at >= kPublishedInterval) {
    state.published_saved_at = turn.now;
    MarkOverdue(turn);
    for (const JobId& id : still_active) GrowCommand(turn, state.jobs.at(id));
    for (const JobId& id : active) {
      if (state.jobs.at(id).published_changed) turn.SavePublished(state.jobs.at(id));
    }
  }
}

}  // namespace trainyard
