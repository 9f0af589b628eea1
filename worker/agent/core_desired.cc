// The core makes this host match the coordinator's desired state.
#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/agent/core.h"

namespace trainyard::agent {
namespace {

// How long a trainer whose group is over may take to leave its collective, flush and exit on its own. A longer time
// would delay the next group.
constexpr absl::Duration kAbortGrace = absl::Milliseconds(500);

}  // namespace

void Core::On(DesiredStateReceived event) {
  const v1::DesiredState& desired = event.desired;
  // The first desired state after a welcome is applied regardless of its revision: a restarted coordinator may
  // number its states from the beginning.
  if (desired_since_welcome_ && desired.revision() <= newest_revision_) return;
  desired_since_welcome_ = true;
  desired_in_this_incarnation_ = true;
  if (desired.revision() < newest_revision_) applied_revision_ = 0;
  newest_revision_ = desired.revision();

  std::set<TrainerId> wanted;
  for (const v1::DesiredTrainer& trainer : desired.trainers()) wanted.insert(FromProto(trainer.key()));
  // If nothing is desired and no trainer exists here, the coordinator may be waiting to learn that the trainers of an
  // earlier desired state, which did not arrive here, were never started: report the revision without waiting for the
  // next heartbeat.
  report_applied_now_ = report_applied_now_ || (wanted.empty() && trainers_.empty());
  const std::set<std::string> unknown_jobs(desired.unknown_jobs().begin(), desired.unknown_jobs().end());
  DropTrainers(wanted, unknown_jobs);
  EndGroups(wanted, unknown_jobs);
  ApplySnapshotJobs(desired);
  for (const v1::DesiredTrainer& trainer : desired.trainers()) ApplyDesiredTrainer(trainer);
  ApplyLogRequests(desired);
  ApplyExaminations(desired);
  ApplyPathRequests(desired);
}

// Trainers of a job that the coordinator does not know continue until they end on their own.
void Core::DropTrainers(const std::set<TrainerId>& wanted, const std::set<std::string>& unknown_jobs) {
  for (auto& [id, trainer] : trainers_) {
    const bool left_alone = trainer.process != Process::kEnded && unknown_jobs.contains(id.job.value());
    const bool is_wanted = wanted.contains(id) || left_alone;
    // The coordinator may be waiting to know whether a dropped trainer was ever started, so report that immediately.
    if (trainer.wanted && !is_wanted && trainer.process == Process::kStarting) report_applied_now_ = true;
    trainer.wanted = is_wanted;
    if (!trainer.wanted && trainer.process != Process::kEnded && !trainer.killed) Drop(trainer);
  }
}

void Core::Drop(Trainer& trainer) {
  if (trainer.asked_to_abort) return;
  LogInfo(absl::StrCat("ending ", Describe(trainer.id), ": no longer wanted"));
  if (trainer.command_grace.has_value()) return EndCommand(trainer);
  if (trainer.link == LinkId()) return Signal(trainer, SIGKILL);
  trainer.asked_to_abort = true;
  trainer.kill_at = std::min(trainer.kill_at, now_ + kAbortGrace);
  v1::LinkMessage message;
  message.mutable_abort()->set_reason(
      absl::StrCat("generation ", trainer.id.generation.value(), " of job ", trainer.id.job.value(), " is over"));
  Emit(SendLinkMessage{trainer.link, std::move(message)});
}

// Sends SIGTERM to the processes of a command, and SIGKILL after its grace period.
void Core::EndCommand(Trainer& trainer) {
  trainer.asked_to_abort = true;
  if (*trainer.command_grace == absl::ZeroDuration() || !IsStarted(trainer)) return Signal(trainer, SIGKILL);
  trainer.kill_at = std::min(trainer.kill_at, now_ + *trainer.command_grace);
  Emit(SignalProcess{trainer.id, SIGTERM, /*to_group=*/true});
}

void Core::EndGroups(const std::set<TrainerId>& wanted, const std::set<std::string>& unknown_jobs) {
  for (auto at = groups_.begin(); at != groups_.end();) {
    bool is_wanted = unknown_jobs.contains(at->first.value()) ||
                     std::any_of(wanted.begin(), wanted.end(), [&](const TrainerId& id) { return GroupOf(id) == *at; });
    if (!is_wanted) {
      KillCheck(*at);
      Emit(EndGroup{*at, absl::StrCat("generation ", at->second.value(), " of job ", at->first.value(), " is over")});
    }
    at = is_wanted ? std::next(at) : groups_.erase(at);
  }
}

void Core::ApplyDesiredTrainer(const v1::DesiredTrainer& desired) {
  TrainerId id = FromProto(desired.key());
  if (absl::Status valid = CheckJobId(id.job.value()); !valid.ok()) {
    LogWarning(absl::StrCat("a desired trainer is ignored: ", valid.message()));
    return;
  }
  auto [at, is_new] = trainers_.try_emplace(id);
  Trainer& trainer = at->second;
  const bool had_go = trainer.desired.has_value() && trainer.desired->go();
  if (desired.go() && !had_go) Emit(SealGroup{GroupOf(id)});
  trainer.desired = desired;
  trainer.wanted = true;
  absl::Status read = ReadSpec(trainer);
  if (!is_new) {
    SendToTrainer(trainer);
    return;
  }
  trainer.id = id;
  trainer.token = options_.make_token();
  if (desired.stop() || leaving_.has_value() || !read.ok()) {
    v1::TrainerExited exited;
    exited.set_cause(read.ok() ? v1::TrainerExited::CAUSE_STOPPED : v1::TrainerExited::CAUSE_START_FAILED);
    exited.set_message(read.ok() ? "it had not started yet" : std::string(read.message()));
    On(ProcessEnded{id, std::move(exited)});
    return;
  }
  StartTrainer(trainer);
}

void Core::StartTrainer(Trainer& trainer) {
  const v1::DesiredTrainer& desired = *trainer.desired;
  // 0 leaves the decision to the host, because only the host knows that its ranks share its cores.
  uint32_t threads = desired.threads();
  if (threads == 0) threads = std::max(1u, options_.inventory.cores() / std::max(1u, desired.local_world_size()));
  Admit(trainer);
  ++counts_.starts;
  trainer.counted = true;
  LogInfo(absl::StrCat("starting ", Describe(trainer.id), " of ", desired.world_size(), ", ", threads, " threads"));
  if (trainer.command_grace.has_value()) return StartCommand(trainer);
  // If the ranks use all slots of the machine's only daemon, no other job can be placed here.
  const uint64_t ranks = std::max(1u, desired.local_world_size());
  const bool owns_cores =
      !options_.shares_machine && ranks >= options_.slots && ranks * threads <= options_.inventory.cores();
  Emit(StartProcess{.desired = desired, .threads = threads, .token = trainer.token, .owns_cores = owns_cores});
  ReportDecisions(trainer, threads);
}

// Reports the decisions for keys of the job that were left to the host; one rank reports for all ranks of this host.
void Core::ReportDecisions(const Trainer& trainer, uint32_t threads) {
  const v1::DesiredTrainer& desired = *trainer.desired;
  v1::JobSpec spec;
  if (desired.local_rank() != 0 || desired.spec().empty() || !spec.ParseFromString(desired.spec())) return;
  v1::Fact fact;
  auto add = [&fact](const char* key, std::string value, std::string reason) {
    v1::ResolvedKey& decision = *fact.mutable_decided()->add_decisions();
    decision.set_key(key);
    decision.set_value(std::move(value));
    decision.set_reason(std::move(reason));
  };
  if (spec.resources().threads_per_rank() == 0) {
    add("resources.threads_per_rank", absl::StrCat(threads),
        absl::StrCat(options_.inventory.cores(), " cores for ", std::max(1u, desired.local_world_size()),
                     desired.local_world_size() > 1 ? " ranks" : " rank"));
  }
  if (spec.network().interface().empty() && desired.world_size() > 1) {
    add("network.interface", data_interface_.empty() ? "auto" : data_interface_,
        absl::StrCat("reaches the coordinator; its address is ", desired.data_address()));
  }
  if (fact.has_decided()) AddFact(trainer, std::move(fact), {.trainer = trainer.id});
}

// Takes from the spec what concerns the daemon: whether the trainer is a command, the command's check and limits, and
// the address for the trainer's traffic.
absl::Status Core::ReadSpec(Trainer& trainer) const {
  v1::DesiredTrainer* desired = &*trainer.desired;
  if (desired->data_address().empty()) desired->set_data_address(data_address_);
  v1::JobSpec spec;
  if (!spec.ParseFromString(desired->spec())) {
    return absl::InvalidArgumentError("the job's spec cannot be read by this version of the daemon");
  }
  if (spec.has_command()) {
    trainer.command_grace = absl::Seconds(spec.command().grace_s());
    trainer.memory_limit = spec.command().memory_bytes();
    trainer.needs_cpus = spec.command().cpus();
    const v1::CommandCheck& check = spec.command().check();  // has its defaults also if the job has no check
    if (check.argv_size() > 0) trainer.check_limit = absl::Seconds(check.time_limit_s());
  }
  if (!spec.network().has_interface() || spec.network().interface().empty()) return absl::OkStatus();
  absl::StatusOr<std::string> address = options_.interface_address(spec.network().interface());
  if (!address.ok()) {
    return absl::NotFoundError(
        absl::StrCat("network.interface on host ", options_.host, ": ", address.status().message()));
  }
  desired->set_data_address(*address);
  return absl::OkStatus();
}

void Core::ApplySnapshotJobs(const v1::DesiredState& desired) {
  std::set<std::string> jobs(desired.jobs().begin(), desired.jobs().end());
  for (const v1::DesiredTrainer& trainer : desired.trainers()) jobs.insert(trainer.key().job_id());
  jobs.insert(desired.unknown_jobs().begin(), desired.unknown_jobs().end());
  if (snapshot_jobs_ == jobs) return;
  snapshot_jobs_ = jobs;
  Emit(KeepSnapshots{std::move(jobs)});
}

void Core::ApplyLogRequests(const v1::DesiredState& desired) {
  std::set<std::string> wanted;
  for (const v1::LogRequest& request : desired.logs()) {
    wanted.insert(request.request_id());
    auto [at, is_new] = log_requests_.try_emplace(request.request_id(), request.follow());
    if (is_new) Emit(StartLogs{request});
    // The job has ended, so no more output will be written.
    if (at->second && !request.follow()) Emit(StopLogs{request.request_id()});
    at->second = request.follow();
  }
  for (auto at = log_requests_.begin(); at != log_requests_.end();) {
    bool keep = wanted.contains(at->first);
    if (!keep) Emit(StopLogs{at->first});
    at = keep ? std::next(at) : log_requests_.erase(at);
  }
}

// The coordinator concludes from an applied revision: a trainer that it dropped and that never reported "started" will
// never start. So a revision counts as applied only when each dropped trainer that was starting has either started and
// reported that, or ended.
void Core::UpdateAppliedRevision() {
  if (!desired_in_this_incarnation_ || applied_revision_ == newest_revision_) return;
  // Facts about the revision must be sent before the revision is reported.
  if (outbox_.has_unstored()) return;
  for (const auto& [id, trainer] : trainers_) {
    if (!trainer.wanted && trainer.process == Process::kStarting) return;
  }
  applied_revision_ = newest_revision_;
  if (std::exchange(report_applied_now_, false)) heartbeat_at_ = std::min(heartbeat_at_, now_);
}

}  // namespace trainyard::agent
