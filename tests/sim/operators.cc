#include "tests/sim/operators.h"

#include <algorithm>
#include <regex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/lifecycle.h"
#include "tests/sim/world.h"

namespace trainyard::sim {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(500);
constexpr int kWatchersPerJob = 2;

void FillCommand(const JobPlan& plan, Mutation mutation, v1::Command& command) {
  command.add_argv("python3");
  command.add_argv("train.py");
  command.set_workdir("/home/user");
  command.set_min_ranks(mutation == Mutation::kForgetMinRanks ? std::max(1u, plan.ranks_per_host) : plan.min_ranks);
  if (plan.ranks_per_host > 0) command.set_ranks_per_host(plan.ranks_per_host);
  command.set_grace_s(absl::ToDoubleSeconds(plan.grace));
  command.set_grow_after_s(absl::ToDoubleSeconds(plan.grow_after));
  if (mutation == Mutation::kGrowAtOnce) command.set_grow_after_s(0);
  if (mutation == Mutation::kNeverGrow) command.set_grow_after_s(1e6);
}

v1::SubmitRequest MakeRequest(const JobPlan& plan, bool resume, Mutation mutation) {
  v1::SubmitRequest request;
  request.set_resume(resume);
  request.set_job_id(IdOf(plan).value());
  request.set_default_run_root("/runs");
  v1::JobSpec& spec = *request.mutable_spec();
  spec.set_name("sim");
  spec.mutable_resources()->set_ranks(plan.ranks);
  spec.mutable_recovery()->set_max_restarts(plan.max_restarts);
  spec.set_priority(plan.priority);
  spec.set_namespace_(plan.name_space);
  if (plan.is_script()) {
    FillCommand(plan, mutation, *spec.mutable_command());
    return request;
  }
  v1::Train& train = *spec.mutable_train();
  train.mutable_model()->set_layers(plan.stages);
  train.mutable_model()->set_heads(plan.tensor);
  train.mutable_model()->set_width(8);
  train.mutable_model()->set_context(8);
  train.mutable_data()->add_text("/data");
  train.mutable_batch()->set_global_size(plan.ranks * 2);
  if (plan.stages > 1) spec.mutable_parallel()->mutable_pipeline()->set_stages(plan.stages);
  if (plan.tensor > 1 && mutation != Mutation::kForgetTensor) spec.mutable_parallel()->set_tensor(plan.tensor);
  train.set_steps(plan.steps);
  spec.mutable_resources()->set_device(v1::DEVICE_CPU);
  if (mutation == Mutation::kIgnoreHangs) spec.mutable_recovery()->set_on_hang(v1::ON_HANG_NOTIFY);
  spec.mutable_checkpoint()->set_keep(2);
  return request;
}

}  // namespace

JobId IdOf(const JobPlan& plan) { return JobId(absl::StrCat("job", 10'000 + plan.number)); }

const JobPlan* FindPlan(const Scenario& scenario, const JobId& job) {
  const auto plan =
      std::find_if(scenario.jobs.begin(), scenario.jobs.end(), [&](const JobPlan& one) { return IdOf(one) == job; });
  return plan == scenario.jobs.end() ? nullptr : &*plan;
}

// ---- one watcher ----

JobWatcher::JobWatcher(World& world, const JobPlan& plan) : world_(world), plan_(plan), job_(IdOf(plan)) {}

void JobWatcher::Open() {
  if (done_ || watch_.value() != 0) return;
  // A client resumes after the last step that it has received.
  position_.step = last_step_;
  position_.eval_step = last_eval_;
  if (!world_.coordinator.alive()) return ReopenLater();
  std::weak_ptr<JobWatcher> weak = weak_from_this();
  watch_ = world_.coordinator.Watch({.batch =
                                         [weak](const WatchBatch& batch) {
                                           if (auto self = weak.lock()) self->HandleBatch(batch);
                                         },
                                     .ended =
                                         [weak](const absl::Status& status) {
                                           auto self = weak.lock();
                                           if (self == nullptr) return;
                                           self->watch_ = WatchId();
                                           if (absl::IsOutOfRange(status)) self->position_.sequence = 0;
                                           self->ReopenLater();
                                         }});
  RequestBatch(/*first=*/true);
}

void JobWatcher::RequestBatch(bool first) {
  world_.coordinator.Post(world_.coordinator.incarnation(), WatchJob{watch_, job_, position_, first});
}

void JobWatcher::ReopenLater() {
  world_.engine.After(kRetry, [self = shared_from_this()] { self->Open(); });
}

void JobWatcher::Close() {
  WatchId watch = std::exchange(watch_, WatchId());
  if (watch.value() == 0) return;
  world_.coordinator.Unwatch(watch);
  world_.coordinator.Post(world_.coordinator.incarnation(), WatchClosed{watch, job_});
}

void JobWatcher::Reopen() {
  Close();
  Open();
}

void JobWatcher::HandleBatch(const WatchBatch& batch) {
  for (const EventPtr& event : batch.events) HandleEvent(*event);
  position_ = batch.position;
  if (batch.last) {
    done_ = true;
    world_.operators.WatcherDone();
    if (!plan_.is_script() && state_ == v1::JOB_STATE_SUCCEEDED && steps_ != plan_.steps &&
        !world_.judge.HasLostReports(job_)) {
      world_.judge.ReportViolation(invariant::kSentOnce, absl::StrCat(job_.value(), " SUCCEEDED after ", plan_.steps,
                                                                      " steps, and a watcher was sent ", steps_));
    }
    return Close();
  }
  // Occasionally the connection of the watcher breaks.
  if (world_.random.Chance(0.1)) {
    world_.engine.After(world_.random.Between(absl::ZeroDuration(), absl::Seconds(1)),
                        [self = shared_from_this(), watch = watch_] {
                          if (watch == self->watch_ && watch.value() != 0) self->Reopen();
                        });
  }
  // The watcher processes the batch, then requests the next.
  world_.engine.After(world_.network.Delay(), [self = shared_from_this(), watch = watch_] {
    if (watch == self->watch_ && watch.value() != 0) self->RequestBatch(/*first=*/false);
  });
}

// Counts the steps that a notice about lost reports names: the watcher will not receive them.
void JobWatcher::CountLostSteps(const std::string& notice) {
  static const std::regex kLost("reports of steps (\\d+) to (\\d+) did not arrive.*");
  std::smatch match;
  if (!std::regex_match(notice, match, kLost)) return;
  const uint64_t last = std::stoull(match[2]);
  if (last <= last_step_) return;
  steps_ += last - std::max<uint64_t>(last_step_, std::stoull(match[1]) - 1);
  last_step_ = last;
}

void JobWatcher::HandleEvent(const v1::Event& event) {
  Judge& judge = world_.judge;
  judge.CheckEvent(job_, event);
  if (event.has_state()) {
    state_ = event.state().state();
    judge.StateSent(job_, event.generation(), state_);
  }
  if (event.has_notice()) CountLostSteps(event.notice().text());
  if (event.has_eval()) {
    if (event.eval().step() <= last_eval_) {
      judge.ReportViolation(invariant::kSentOnce,
                            absl::StrCat(job_.value(), ": the evaluation of step ", event.eval().step(),
                                         " was sent after that of step ", last_eval_));
    }
    last_eval_ = event.eval().step();
  }
  if (!event.has_step()) return;
  uint64_t step = event.step().step();
  bool skip = world_.mutation == Mutation::kDropStep && world_.random.Chance(0.01);
  if (skip) return;
  for (int times = world_.mutation == Mutation::kRepeatStep && world_.random.Chance(0.01) ? 2 : 1; times > 0; --times) {
    if (step <= last_step_) {
      judge.ReportViolation(invariant::kSentOnce,
                            absl::StrCat(job_.value(), ": step ", step, " was sent after step ", last_step_));
    }
    last_step_ = step;
    ++steps_;
  }
  if (event.step().step() > plan_.steps || steps_ > plan_.steps) {
    judge.ReportViolation(invariant::kSentOnce,
                          absl::StrCat(job_.value(), " of ", plan_.steps, " steps was sent step ", step));
  }
}

// ---- operators ----

void Operators::Begin(const Scenario& scenario) {
  plans_ = scenario.jobs;
  for (const JobPlan& plan : plans_) {
    world_.engine.After(plan.at, [this, plan] { Submit(plan); });
  }
  for (const Operation& operation : scenario.operations) {
    world_.engine.After(operation.at, [this, operation] { Perform(operation); });
  }
}

void Operators::Submit(const JobPlan& plan) {
  auto retry = [this, plan] { world_.engine.After(kRetry, [this, plan] { Submit(plan); }); };
  world_.engine.After(world_.network.Delay(), [this, plan, retry] {
    world_.coordinator.Call(
        [&](CallId call) {
          // A user who starts a second job in a folder in use does not intend to resume from it.
          return SubmitJob{call, MakeRequest(plan, world_.incarnation() > 0 && plan.folder_of == 0, world_.mutation),
                           JobId("fallback0001")};
        },
        [this, plan, retry](const std::optional<Reply>& reply) {
          if (!reply.has_value() || absl::IsUnavailable(reply->status)) return retry();
          if (!reply->status.ok()) {
            return world_.judge.ReportViolation(
                invariant::kOutcome, absl::StrCat(IdOf(plan).value(), " was refused: ", reply->status.ToString()));
          }
          world_.judge.SubmissionAnswered(IdOf(plan));
          world_.judge.Trace(absl::StrCat("operator: ", IdOf(plan).value(), " is accepted"));
          if (world_.mutation == Mutation::kCancelUnasked) {
            world_.judge.NoteHarmToJob(IdOf(plan));
            auto cancel = [&](CallId call) { return CancelJob{call, IdOf(plan), "without a request"}; };
            world_.coordinator.Call(cancel, [](const std::optional<Reply>&) {});
          }
          for (int i = 0; i < kWatchersPerJob; ++i) {
            watchers_.push_back(std::make_shared<JobWatcher>(world_, plan));
            watchers_.back()->Open();
          }
        });
  });
}

void Operators::Perform(const Operation& operation) {
  Judge& judge = world_.judge;
  judge.Trace(absl::StrCat("operator: ", NameOf(operation.kind)));
  const std::string host = absl::StrCat("w", operation.host);
  auto set_host = [&](v1::SetHostRequest::Action action) { SetHostState(host, action, operation.now); };
  if (operation.kind == OperationKind::kCordon) return set_host(v1::SetHostRequest::ACTION_CORDON);
  if (operation.kind == OperationKind::kUncordon) return set_host(v1::SetHostRequest::ACTION_UNCORDON);
  if (operation.kind == OperationKind::kDrain) {
    for (const JobPlan& plan : plans_) judge.NoteHarmToJob(IdOf(plan));
    return set_host(v1::SetHostRequest::ACTION_DRAIN);
  }
  JobId job(absl::StrCat("job", 10'001 + operation.job));
  if (operation.kind == OperationKind::kSave) return RequestSave(job);
  if (operation.kind == OperationKind::kSetPriority) return SetJobPriority(job, operation.priority);
  judge.NoteHarmToJob(job);
  if (operation.kind == OperationKind::kResume) return Resume(job);
  const bool cancel_saved = operation.kind == OperationKind::kCancelSaved;
  if (operation.kind == OperationKind::kCancel || cancel_saved) judge.CancelRequested(job);
  auto make = [&](CallId call) -> Event {
    if (operation.kind == OperationKind::kCancel) return CancelJob{call, job, "enough"};
    if (cancel_saved) return CancelJob{call, job, "enough", /*save=*/true};
    if (operation.kind == OperationKind::kPause) {
      PauseJob pause{call, {}};
      pause.request.set_job_id(job.value());
      pause.request.set_now(operation.now);
      return pause;
    }
    RestartJob restart{call, {}};
    restart.request.set_job_id(job.value());
    restart.request.set_now(operation.now);
    return restart;
  };
  world_.coordinator.Call(make, [this, operation, job](const std::optional<Reply>& reply) {
    if (!reply.has_value() || !reply->status.ok()) return;
    if (operation.kind == OperationKind::kPause && world_.mutation == Mutation::kResumePaused) ResumeUnasked(job);
    if (operation.kind == OperationKind::kCancel) world_.judge.CancelAnswered(job);
  });
}

void Operators::RequestSave(const JobId& job) {
  world_.coordinator.Call(
      [&](CallId call) {
        SaveJob save{call, {}};
        save.request.set_job_id(job.value());
        return save;
      },
      [](const std::optional<Reply>&) {});
}

void Operators::SetJobPriority(const JobId& job, uint32_t priority) {
  world_.judge.PriorityChanges(job);
  world_.coordinator.Call(
      [&](CallId call) {
        SetPriority set{call, {}};
        set.request.set_job_id(job.value());
        set.request.set_priority(priority);
        return set;
      },
      [](const std::optional<Reply>&) {});
}

void Operators::Resume(const JobId& job) {
  world_.judge.ResumeRequested(job);
  SendResume(job);
}

void Operators::SendResume(const JobId& job) {
  world_.coordinator.Call(
      [&](CallId call) {
        ResumeJob resume{call, {}};
        resume.request.set_job_id(job.value());
        resume.request.set_from_start(true);
        return resume;
      },
      [](const std::optional<Reply>&) {});
}

void Operators::ResumeUnasked(const JobId& job) {
  world_.engine.After(absl::Seconds(20), [this, job] { SendResume(job); });
}

void Operators::GiveUp(const std::string& host) { SetHostState(host, v1::SetHostRequest::ACTION_LOST, true); }

void Operators::SetHostState(const std::string& host, v1::SetHostRequest::Action action, bool now) {
  world_.coordinator.Call(
      [&](CallId call) {
        SetHost set{call, {}};
        set.request.set_name(host);
        set.request.set_action(action);
        set.request.set_reason("maintenance");
        set.request.set_now(now);
        return set;
      },
      [](const std::optional<Reply>&) {});
}

void Operators::ResumeAndUncordon() {
  if (!world_.coordinator.alive()) return;
  const State& state = world_.coordinator.core().state();
  std::vector<JobId> paused;
  std::vector<std::string> cordoned;
  for (const auto& [id, job] : state.jobs) {
    if (job.state() == v1::JOB_STATE_PAUSED) paused.push_back(id);
  }
  for (const auto& [name, host] : state.hosts) {
    if (host.record.cordoned()) cordoned.push_back(name.value());
  }
  for (const JobId& job : paused) Resume(job);
  for (const std::string& host : cordoned) SetHostState(host, v1::SetHostRequest::ACTION_UNCORDON, false);
}

bool Operators::AllDone() const { return done_ == plans_.size() * kWatchersPerJob; }

}  // namespace trainyard::sim
