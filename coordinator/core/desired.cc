#include "coordinator/core/desired.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "coordinator/handlers/slots.h"

namespace trainyard {
namespace {

bool IsDesired(const Job& job, const Rank& rank) {
  if (job.current.nothing_desired || rank.ended()) return false;
  // The rank was reported as started, but its host has attached without listing it: the report of its exit will follow,
  // so it must not be started again.
  if (rank.missing_since != absl::InfiniteFuture()) return false;
  // After a restart of the coordinator nothing is started until every host of the job has reported what it runs.
  return rank.seen_running || job.current.unconfirmed.empty();
}

// A paused or preempted job has been saved and may wait for days before it resumes from the disk, so other jobs may use
// the memory of its snapshots. A job that waits to start again after a failure may have steps that only its snapshots
// hold, so it keeps them for a time, as long as no other job uses its slots on the host.
bool KeepsSnapshots(const State& state, const Job& job, const Host& host) {
  const bool was_preempted = job.state() == v1::JOB_STATE_QUEUED && !job.record.admitted();
  if (job.state() == v1::JOB_STATE_PAUSED || was_preempted || job.left_memory) return false;
  const auto own = job.ranks_on.find(host.name);
  if (!job.left_slots || own == job.ranks_on.end()) return true;
  return UsedSlotsOf(state, host).count + own->second.size() <= host.slots;
}

// The number of hosts of the job whose first rank is before the first rank of this host.
uint32_t GroupRank(const Job& job, const Host& host) {
  const uint32_t first = job.ranks_on.at(host.name).front();
  return static_cast<uint32_t>(std::count_if(job.ranks_on.begin(), job.ranks_on.end(),
                                             [first](const auto& other) { return other.second.front() < first; }));
}

v1::DesiredTrainer MakeTrainer(const Job& job, const Rank& rank, const Host& host) {
  v1::DesiredTrainer trainer;
  trainer.mutable_key()->set_job_id(job.id.value());
  trainer.mutable_key()->set_generation(job.generation().value());
  trainer.mutable_key()->set_rank(rank.record.rank());
  trainer.set_world_size(static_cast<uint32_t>(job.ranks.size()));
  trainer.set_local_rank(rank.local_rank);
  trainer.set_local_world_size(rank.local_world_size);
  trainer.set_spec(job.record.spec_bytes());
  trainer.set_spec_digest(job.head().spec_digest());
  trainer.set_device(DeviceOf(job));
  trainer.set_threads(ThreadsPerRank(job, host, rank.local_world_size));
  trainer.set_resume(job.head().resume());
  trainer.set_allow_fresh_start(job.head().allow_fresh_start());
  if (job.head().checkpoints_size() > 0) {
    *trainer.mutable_restart_from() = job.head().checkpoints(job.head().checkpoints_size() - 1);
  }
  trainer.set_go(job.current.store.sealed);
  trainer.set_stop(job.current.stop);
  if (job.current.stop) {
    trainer.set_stop_request(job.record.stop_requests());
    // If the save fails, a job that was to pause, restart, be preempted or be cancelled with a save continues to train;
    // a job that is cancelled without a save ends in any case.
    trainer.set_stop_needs_save(!job.record.cancelled() && job.record.ending() != v1::JobRecord::ENDING_UNSPECIFIED);
  }
  trainer.set_data_address(host.inventory.data_address());
  if (rank.record.rank() == 0) {
    *trainer.mutable_grants() = job.record.grants();
    // A script may start a second process for the same rank, which must not receive a request that the first one has
    // answered.
    const bool is_due = !job.head().spec().has_command() || job.record.save_awaited();
    if (is_due) trainer.set_save_requests(job.record.save_requests());
  }
  if (job.head().spec().has_command()) {
    trainer.set_group_rank(GroupRank(job, host));
    trainer.set_group_world_size(static_cast<uint32_t>(job.ranks_on.size()));
    trainer.set_restarts(job.head().restarts());
  }
  return trainer;
}

}  // namespace

v1::Device DeviceOf(const Job& job) {
  if (job.head().spec().resources().has_device()) return job.head().spec().resources().device();
  for (const v1::ResolvedKey& decision : job.head().decisions()) {
    if (decision.key() == kDeviceKey) return decision.value() == kCudaValue ? v1::DEVICE_CUDA : v1::DEVICE_CPU;
  }
  return v1::DEVICE_CPU;
}

bool ChoosesDeviceItself(const Job& job) {
  const v1::JobSpec& spec = job.head().spec();
  if (!spec.has_command()) return false;
  const auto& decisions = job.head().decisions();
  return !spec.resources().has_device() ||
         std::any_of(decisions.begin(), decisions.end(),
                     [](const v1::ResolvedKey& decision) { return decision.key() == kDeviceKey; });
}

uint32_t ThreadsPerRank(const Job& job, const Host& host, uint32_t local_world_size) {
  uint32_t requested = job.head().spec().resources().threads_per_rank();
  if (requested > 0) return requested;
  return std::max(1u, host.inventory.cores() / std::max(1u, local_world_size));
}

v1::CoordinatorMessage MakeDesired(const State& state, const Host& host) {
  v1::CoordinatorMessage message;
  v1::DesiredState& desired = *message.mutable_desired();
  desired.set_revision(host.record.revision());
  for (const JobId& id : host.jobs) {
    if (KeepsSnapshots(state, state.jobs.at(id), host)) desired.add_jobs(id.value());
  }
  for (const JobId& id : host.jobs) {
    const Job& job = state.jobs.at(id);
    auto host_ranks = job.ranks_on.find(host.name);
    if (job.current.nothing_desired || job.held_at != 0 || host_ranks == job.ranks_on.end()) continue;
    for (uint32_t rank : host_ranks->second) {
      if (IsDesired(job, job.ranks[rank])) *desired.add_trainers() = MakeTrainer(job, job.ranks[rank], host);
    }
  }
  for (const JobId& id : host.jobs) {
    const Job& job = state.jobs.at(id);
    auto host_ranks = job.ranks_on.find(host.name);
    if (host_ranks == job.ranks_on.end()) continue;
    for (uint32_t index : host_ranks->second) {
      const Rank& rank = job.ranks[index];
      if (!rank.examination.has_value() || rank.examination->answer.has_value()) continue;
      v1::ExamineRequest& request = *desired.add_examine();
      request.set_request_id(rank.examination->request_id);
      request.mutable_key()->set_job_id(job.id.value());
      request.mutable_key()->set_generation(job.generation().value());
      request.mutable_key()->set_rank(index);
      request.set_with_stack(rank.examination->with_stack);
    }
  }
  for (const JobId& id : state.with_path_queries) {
    const Job& job = state.jobs.at(id);
    auto query = job.path_queries.find(host.name);
    if (query == job.path_queries.end() || query->second.answer.has_value()) continue;
    v1::PathRequest& request = *desired.add_look_for();
    request.set_request_id(query->second.request_id);
    request.set_path(query->second.path);
  }
  for (const v1::RunningTrainer& running : host.held) {
    const Job& job = state.jobs.at(JobId(running.key().job_id()));
    v1::DesiredTrainer& trainer = *desired.add_trainers();
    *trainer.mutable_key() = running.key();
    trainer.set_world_size(job.world_size());
    trainer.set_spec(job.record.spec_bytes());
    trainer.set_spec_digest(job.head().spec_digest());
    trainer.set_go(running.ready());
    trainer.set_data_address(host.inventory.data_address());
  }
  std::set<std::string> unknown;
  for (const v1::TrainerKey& key : host.unknown) unknown.insert(key.job_id());
  for (const std::string& id : unknown) desired.add_unknown_jobs(id);
  for (const auto& [id, reader] : state.readers) {
    // After the end of the job, a daemon without the log request sends the remaining lines and ends its PushLogs call.
    if (reader.close_at != absl::InfiniteFuture()) continue;
    for (const auto& [request_id, name] : reader.open) {
      const Job& job = state.jobs.at(JobId(reader.request.job_id()));
      auto host_ranks = job.ranks_on.find(name);
      if (name != host.name || host_ranks == job.ranks_on.end()) continue;
      v1::LogRequest& request = *desired.add_logs();
      request.set_request_id(request_id);
      request.set_job_id(reader.request.job_id());
      request.set_tail_lines(reader.request.tail_lines());
      request.set_follow(reader.request.follow());
      for (uint32_t rank : host_ranks->second) {
        const auto& wanted = reader.request.ranks();  // empty: all
        if (wanted.empty() || std::count(wanted.begin(), wanted.end(), rank) > 0) request.add_ranks(rank);
      }
    }
  }
  return message;
}

void MarkRemoved(State& state, const Host& host) {
  for (const JobId& id : host.jobs) {
    Job& job = state.jobs.at(id);
    auto host_ranks = job.ranks_on.find(host.name);
    if (!job.current.nothing_desired || host_ranks == job.ranks_on.end()) continue;
    for (uint32_t index : host_ranks->second) {
      Rank& rank = job.ranks[index];
      if (rank.removed_at_revision == 0) rank.removed_at_revision = host.record.revision();
    }
  }
}

}  // namespace trainyard
