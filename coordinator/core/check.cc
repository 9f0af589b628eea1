// Checks every invariant of the core's state. Debug builds and tests check all of them after each event.
#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/hash.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "coordinator/core/core.h"
#include "coordinator/policy/goodput.h"
#include "coordinator/policy/last_step.h"
#include "coordinator/policy/lifecycle.h"
#include "coordinator/policy/saves.h"

namespace trainyard {
namespace {

absl::Status Broken(const Job& job, absl::string_view what) {
  return absl::InternalError(absl::StrCat("job ", job.id.value(), " (", StateName(job.state()), ", generation ",
                                          job.head().generation(), "): ", what));
}

// Checks that the job's state and the indexes of the core agree.
absl::Status CheckIndexes(const State& state, const Job& job) {
  uint64_t index = job.record.submit_index();
  auto it = state.by_submission.find(index);
  if (it == state.by_submission.end() || it->second != job.id) return Broken(job, "is not listed by its submit index");
  if (state.active.contains(job.id) != HasTrainers(job.state()))
    return Broken(job, "has a state that disagrees with the set of active jobs");
  bool queued = state.queue.contains(index);
  if (job.state() == v1::JOB_STATE_QUEUED && !queued) return Broken(job, "is QUEUED, but not in the queue");
  if (queued && job.state() != v1::JOB_STATE_QUEUED && job.state() != v1::JOB_STATE_RECOVERING) {
    return Broken(job, "is in the queue in a state that does not wait for slots");
  }
  if (HasTrainers(job.state()) && !job.record.admitted())
    return Broken(job, "has a group, but does not count as started");
  if (!queued && job.record.preempting_size() > 0) return Broken(job, "does not wait, but jobs end for it");
  if (queued && (job.record.preempting_size() > 0) != state.preempting.contains(index)) {
    return Broken(job, "has a record that disagrees with the set of jobs for which others end");
  }
  if ((queued && job.record.admitted()) != state.queued_again.contains(index)) {
    return Broken(job, "has a record that disagrees with the set of waiting jobs that have started before");
  }
  bool finished = std::count(state.finished.begin(), state.finished.end(), job.id) == 1;
  if (finished != IsFinal(job.state())) return Broken(job, "has a state that disagrees with the list of finished jobs");
  return absl::OkStatus();
}

// Checks that a generation has all its ranks, each on one host, which lists the job until the job has ended.
absl::Status CheckRanks(const State& state, const Job& job) {
  if (job.ranks.size() != job.record.rank_count())
    return Broken(job, "has a number of ranks that differs from the record");
  if ((job.head().generation() == 0) != job.ranks.empty()) return Broken(job, "has ranks without a generation");
  if (!job.ranks.empty() && (job.ranks.size() < job.min_world_size() || job.ranks.size() > job.world_size())) {
    return Broken(job, "is placed in part");
  }
  size_t indexed = 0;
  for (const auto& [name, ranks] : job.ranks_on) {
    indexed += ranks.size();
    auto host = state.hosts.find(name);
    bool listed = host != state.hosts.end() && host->second.jobs.contains(job.id);
    bool has_live_rank = std::any_of(
        ranks.begin(), ranks.end(), [&](uint32_t rank) { return rank < job.ranks.size() && !job.ranks[rank].ended(); });
    // A host may be forgotten once nothing of the job is left there, and a new host may take its name.
    if (!IsFinal(job.state()) && has_live_rank && !listed) {
      return Broken(job, absl::StrCat("host ", name.value(), " does not list it"));
    }
    if (IsFinal(job.state()) && listed)
      return Broken(job, absl::StrCat("has ended, but is listed by host ", name.value()));
    for (uint32_t rank : ranks) {
      if (rank >= job.ranks.size() || job.ranks[rank].host() != name)
        return Broken(job, "has a rank on a host that the index does not name");
    }
  }
  if (indexed != job.ranks.size()) return Broken(job, "has a rank on no host");
  return absl::OkStatus();
}

// Checks what each state guarantees about the ranks and the value store.
absl::Status CheckGuarantees(const Job& job) {
  const v1::JobState state = job.state();
  for (const Rank& rank : job.ranks) {
    if (rank.record.ready() && !rank.record.registered())
      return Broken(job, "has a rank that is ready without the right digest");
    if (state == v1::JOB_STATE_RUNNING && !rank.record.ready())
      return Broken(job, "runs with a rank that is not ready");
    if (state == v1::JOB_STATE_SUCCEEDED && (!rank.ended() || !rank.record.finished())) {
      return Broken(job, "succeeded with a rank that did not finish");
    }
  }
  const uint64_t steps = job.head().spec().train().steps();
  const uint64_t last_step = job.ranks.empty() ? steps : LastStepOf(job.ranks.front().record, steps);
  if (state == v1::JOB_STATE_SUCCEEDED && !LastStepIsSaved(job.head(), last_step, job.record.restored_step())) {
    return Broken(job, "succeeded, and no checkpoint of its last step is recorded");
  }
  if (state == v1::JOB_STATE_RUNNING && !job.current.store.sealed) return Broken(job, "runs with an open value store");
  if ((state == v1::JOB_STATE_PLACED || state == v1::JOB_STATE_STARTING) && job.current.store.sealed) {
    return Broken(job, "forms with a sealed value store");
  }
  if ((job.current.store.sealed || job.current.nothing_desired) && job.current.store.log != nullptr) {
    return Broken(job, "still sends values of a closed value store");
  }
  if (job.head().restarts() > job.head().spec().recovery().max_restarts()) return Broken(job, "restarted too often");
  if (job.head().restarts() + job.head().planned_restarts() + 1 != job.head().generation() &&
      job.head().generation() > 0) {
    return Broken(job, "has a generation that no restart explains");
  }
  if (!HasTrainers(state) && !job.current.nothing_desired)
    return Broken(job, "has no group, but its trainers are still desired");
  if (state == v1::JOB_STATE_QUEUED || state == v1::JOB_STATE_PAUSED) {
    for (const Rank& rank : job.ranks) {
      if (!rank.ended()) return Broken(job, "has no group, but a rank of the last one may run");
    }
  }
  bool ending = job.record.ending() != v1::JobRecord::ENDING_UNSPECIFIED;
  if (ending && state != v1::JOB_STATE_STOPPING) return Broken(job, "records how a group ends, but is not STOPPING");
  if (state == v1::JOB_STATE_CANCELLED && !job.record.cancelled()) {
    if (job.head().generation() > 0) return Broken(job, "is CANCELLED without a request");
  }
  if (IsFinal(state) && job.head().finished_unix_ms() == 0) return Broken(job, "has ended without a time");
  return absl::OkStatus();
}

// Checks that every millisecond of every rank is in exactly one part of the ledger.
absl::Status CheckGoodput(const Job& job) {
  const v1::GoodputRecord& ledger = job.record.goodput();
  uint64_t span = static_cast<uint64_t>(ledger.until_unix_ms() - ledger.begin_unix_ms());
  if (TotalMs(ledger) != span * job.world_size()) return Broken(job, "has a goodput ledger that does not add up");
  if (ledger.since_saved_ms() > ledger.train_ms()) return Broken(job, "has more unsaved time than training time");
  if (ledger.since_step_ms() > ledger.since_saved_ms())
    return Broken(job, "has more unfinished time than unsaved time");
  return absl::OkStatus();
}

// Checks that no slot has two ranks: the ranks that may run on a host fit its slots, unless its daemon came back with
// fewer.
absl::Status CheckSlots(const State& state, const Host& host) {
  uint64_t used = 0;
  for (const JobId& id : host.jobs) {
    const Job& job = state.jobs.at(id);
    auto host_ranks = job.ranks_on.find(host.name);
    if (host_ranks == job.ranks_on.end()) continue;
    for (uint32_t rank : host_ranks->second) used += job.ranks[rank].ended() ? 0 : 1;
  }
  if (used <= host.max_slots || host.max_slots == 0) return absl::OkStatus();  // 0: not attached yet
  return absl::InternalError(
      absl::StrCat("host ", host.name.value(), " has ", used, " ranks in ", host.max_slots, " slots"));
}

// Checks that sequence numbers increase up to at most the reserved limit, and that no watcher waits for a job that has
// ended.
absl::Status CheckHistory(const Job& job) {
  for (const auto* events : {&job.history.durable(), &job.history.reports()}) {
    uint64_t before = 0;
    for (const EventPtr& event : *events) {
      if (event->sequence() <= before) return Broken(job, "has a history out of order");
      before = event->sequence();
    }
  }
  if (job.history.last_sequence() > job.last_sequence) return Broken(job, "published an event above its last sequence");
  uint64_t durable = job.history.durable().empty() ? 0 : job.history.durable().back()->sequence();
  if (durable > job.record.event_sequence()) return Broken(job, "has a durable event that its record does not know");
  // A job's first event has the number 1.
  const bool cut = !job.history.durable().empty() && job.history.durable().front()->sequence() > 1;
  if (cut && job.record.events_dropped() == 0) return Broken(job, "lost events that were not counted");
  if (job.history.durable().size() > limits::kDurableEvents) return Broken(job, "has too many durable events");
  if (job.history.reports().size() > limits::kJobEvents) return Broken(job, "has too many reports");
  if (!IsFinal(job.state()) && job.last_sequence > job.record.sequence_limit()) {
    return Broken(job, "published an event above the reserved sequences");
  }
  if (IsFinal(job.state()) && !job.waiting_watchers.empty()) return Broken(job, "has ended, but a watcher waits");
  for (int i = 1; i < job.head().checkpoints_size(); ++i) {
    if (job.head().checkpoints(i - 1).step() >= job.head().checkpoints(i).step()) {
      return Broken(job, "has checkpoints out of order");
    }
  }
  return absl::OkStatus();
}

// Checks the grants of a job: there are at most kGrantsMax, none is of a later generation, the steps of each generation
// increase, a refusal has a reason, and a checkpoint that is recorded has no grant any more.
absl::Status CheckGrants(const Job& job) {
  const v1::Job& head = job.head();
  if (job.record.grants_size() > kGrantsMax) return Broken(job, "has too many grants");
  std::map<uint64_t, uint64_t> granted;  // newest step by generation
  for (const v1::CheckpointGrant& grant : job.record.grants()) {
    if (grant.generation() > head.generation()) return Broken(job, "has a grant of a later generation");
    if (grant.refused() == grant.reason().empty()) return Broken(job, "refused a checkpoint without a reason");
    if (grant.refused()) continue;
    uint64_t& newest = granted[grant.generation()];
    if (grant.step() <= newest) return Broken(job, absl::StrCat("granted step ", grant.step(), " twice or backward"));
    newest = grant.step();
    for (const v1::CheckpointInfo& info : head.checkpoints()) {
      if (info.generation() == grant.generation() && info.step() == grant.step()) {
        return Broken(job, absl::StrCat("step ", grant.step(), " is recorded and still granted"));
      }
    }
  }
  if (job.record.save_awaited() && job.state() == v1::JOB_STATE_RUNNING && job.record.save_requests() == 0) {
    return Broken(job, "awaits a save that was not requested from its ranks");
  }
  return absl::OkStatus();
}

absl::Status CheckHosts(const State& state) {
  size_t attached = 0;
  for (const auto& [name, host] : state.hosts) {
    if (host.attached()) {
      ++attached;
      auto it = state.sessions.find(host.session);
      if (it == state.sessions.end() || it->second != name) {
        return absl::InternalError(absl::StrCat("host ", name.value(), ": its session belongs to another host"));
      }
    }
    RETURN_IF_ERROR(CheckSlots(state, host));
    for (const JobId& id : host.jobs) {
      auto job = state.jobs.find(id);
      if (job == state.jobs.end() || !job->second.ranks_on.contains(name)) {
        return absl::InternalError(absl::StrCat("host ", name.value(), " lists job ", id.value(), " without a rank"));
      }
    }
  }
  if (attached != state.sessions.size()) return absl::InternalError("a session belongs to no host");
  return absl::OkStatus();
}

}  // namespace

absl::Status Core::Check() const {
  RETURN_IF_ERROR(CheckHosts(state_));
  uint64_t durable_bytes = 0;
  for (const auto& [id, job] : state_.jobs) {
    RETURN_IF_ERROR(CheckIndexes(state_, job));
    RETURN_IF_ERROR(CheckRanks(state_, job));
    RETURN_IF_ERROR(CheckGuarantees(job));
    RETURN_IF_ERROR(CheckGoodput(job));
    RETURN_IF_ERROR(CheckHistory(job));
    RETURN_IF_ERROR(CheckGrants(job));
    durable_bytes += job.history.durable_bytes();
    if (HashHex(job.record.spec_bytes()) != job.head().spec_digest())
      return Broken(job, "has a digest that is not that of its spec");
  }
  uint64_t queued = 0, unfinished = 0;
  for (const auto& [name, count] : state_.queued) queued += count;
  for (const auto& [name, count] : state_.unfinished) unfinished += count;
  if (queued != state_.queue.size() || unfinished != state_.jobs.size() - state_.finished.size()) {
    return absl::InternalError("the numbers of jobs by namespace do not add up");
  }
  if (durable_bytes != state_.durable_bytes) return absl::InternalError("the durable events' bytes do not add up");
  for (const auto& [reader_id, reader] : state_.readers) {
    if (!state_.jobs.contains(JobId(reader.request.job_id()))) {
      return absl::InternalError(absl::StrCat("log reader ", reader_id.value(), " reads a job that was removed"));
    }
  }
  return absl::OkStatus();
}

}  // namespace trainyard
