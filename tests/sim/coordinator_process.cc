#include "tests/sim/coordinator_process.h"

#include <malloc.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace trainyard::sim {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr size_t kQueueSize = 65'536;

// Returns the bytes that this process has allocated; 0 with the allocator of a sanitizer, which does not count them.
size_t MemoryInUse() {
  struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// A mutation is a planted bug, which an invariant must detect (mutation.h).
QueueRules MakeRules(const QueuePlan& plan, Mutation mutation) {
  QueueRules rules;
  rules.overtake = plan.overtake;
  rules.preemption = plan.preemption;
  rules.min_run = plan.min_run;
  for (const NamespacePlan& space : plan.namespaces) {
    NamespaceRules& added = rules.namespaces[space.name];
    added.weight_milli = space.weight_milli;
    if (space.max_slots > 0) added.max_slots = space.max_slots;
  }
  if (mutation == Mutation::kIgnoreQuotas) rules.namespaces.clear();
  if (mutation == Mutation::kPreemptEqual) rules.min_priority_difference = 0;
  if (mutation == Mutation::kOvertakeAll) rules.overtake = absl::InfiniteDuration();
  if (mutation == Mutation::kPreemptNone) rules.preemption = false;
  return rules;
}

}  // namespace

CoordinatorProcess::CoordinatorProcess(World& world) : clock(world.engine), world_(world) {}

void CoordinatorProcess::Start() {
  if (alive()) return;
  ++incarnation_;
  paused_ = busy_ = false;
  // Like Clock::GetSteadyClock, the clock of a process reads the wall clock once, at its start.
  clock.model.offset = wall_offset;
  clock.model.drift = world_.scenario.coordinator_drift;
  Snapshot snapshot = *store.Load("");
  CoreOptions options{.cluster_id = "sim-cluster",
                      .incarnation = Incarnation(world_.random.Next() | 1),
                      .lease = absl::Seconds(3),
                      .finished_jobs = 1'000,
                      .queue = MakeRules(world_.scenario.queue, world_.mutation)};
  absl::StatusOr<std::unique_ptr<Core>> core = Core::New(options, snapshot.records, clock.TimeNow());
  if (!core.ok()) {
    world_.judge.ReportViolation(invariant::kDurable,
                                 absl::StrCat("the store cannot be read: ", core.status().ToString()));
    return;
  }
  core_ = core->get();
  queue_ = std::make_unique<EventQueue>(kQueueSize);
  loop_ = std::make_unique<CoreLoop>(CoreLoop::Options{.core = *std::move(core),
                                                       .revision = snapshot.revision,
                                                       .store = &store,
                                                       .clock = &clock,
                                                       .queue = queue_.get(),
                                                       .sink = this,
                                                       .contacts = [this] { return TakeContacts(); },
                                                       .observe = {},
                                                       .failed = {}});
  world_.judge.Trace(
      absl::StrCat("coordinator: incarnation ", incarnation_, " with ", snapshot.records.size(), " records"));
  world_.judge.AfterLoad(*core_);
  TickSoon();
}

void CoordinatorProcess::Crash() {
  if (!alive()) return;
  world_.judge.Trace("coordinator: crashes");
  store.Crash(world_.random);
  const size_t held = MemoryInUse();
  loop_.reset();
  queue_.reset();
  freed_bytes = held - std::min(held, MemoryInUse());
  core_ = nullptr;
  waiting_.clear();
  last_contacts_.clear();
  effects_.clear();
  auto calls = std::exchange(calls_, {});
  auto watchers = std::exchange(watchers_, {});
  for (auto& [id, answer] : calls) answer(std::nullopt);
  for (auto& [id, watcher] : watchers) watcher.ended(absl::UnavailableError("the coordinator has exited"));
  world_.network.CoordinatorDied();
  if (!std::exchange(paused_, false)) return;
  world_.network.PumpAll();  // the connections of a stopped process end when it is killed
}

void CoordinatorProcess::Pause() {
  if (alive()) world_.judge.Trace("coordinator: SIGSTOP");
  paused_ = true;
}

void CoordinatorProcess::Continue() {
  if (!paused_) return;
  world_.judge.Trace("coordinator: SIGCONT");
  paused_ = false;
  world_.network.PumpAll();
  Round();
}

void CoordinatorProcess::Post(uint64_t incarnation, Event event) {
  if (!alive() || incarnation != incarnation_) return;
  waiting_.push_back(std::move(event));
  Round();
}

void CoordinatorProcess::RecordContact(uint64_t incarnation, SessionId session) {
  if (alive() && incarnation == incarnation_) last_contacts_[session] = clock.TimeNow();
}

std::vector<Tick::Contact> CoordinatorProcess::TakeContacts() {
  std::vector<Tick::Contact> contacts;
  for (const auto& [session, time] : std::exchange(last_contacts_, {}))
    contacts.push_back({.session = session, .time = time});
  return contacts;
}

void CoordinatorProcess::Call(const std::function<Event(CallId)>& make, Answer answer) {
  if (!alive()) return answer(std::nullopt);
  CallId id(++last_id_);
  calls_[id] = std::move(answer);
  Post(incarnation_, make(id));
}

WatchId CoordinatorProcess::Watch(Watcher watcher) {
  WatchId id(++last_id_);
  watchers_[id] = std::move(watcher);
  return id;
}

void CoordinatorProcess::TickSoon() {
  world_.engine.After(kTick, [this, incarnation = incarnation_] {
    if (!alive() || incarnation != incarnation_) return;
    TickSoon();
    if (!paused_ && !busy_ && !world_.judge.violation().has_value()) RunLoop({});
    Round();
  });
}

// Handles either all waiting events in one round, as the loop's thread may, or one event alone, so that StaleCheck can
// compare the state before and after it.
void CoordinatorProcess::Round() {
  if (!alive() || paused_ || busy_ || world_.judge.violation().has_value()) return;
  while (alive() && !busy_ && !waiting_.empty()) {
    if (waiting_.size() > 1 && world_.random.Chance(0.5)) {
      RunLoop({std::make_move_iterator(waiting_.begin()), std::make_move_iterator(waiting_.end())});
      waiting_.clear();
      continue;
    }
    Event event = std::move(waiting_.front());
    waiting_.pop_front();
    RunOne(std::move(event));
  }
}

void CoordinatorProcess::RunLoop(std::vector<Event> events) {
  const size_t count = events.size();
  for (Event& event : events) queue_->Post(std::move(event));
  if (world_.mutation == Mutation::kForgetQueued && !core_->state().queue.empty() && world_.random.Chance(0.1)) {
    const_cast<State&>(core_->state()).queue.clear();
  }
  absl::StatusOr<size_t> handled = loop_->RunOnce(clock.TimeNow() + absl::Nanoseconds(1));  // does not wait
  if (!handled.ok())
    world_.judge.ReportViolation(invariant::kConsistent, absl::StrCat("the loop ends: ", handled.status().ToString()));
  if (auto stale = std::exchange(stale_, std::nullopt)) {
    if (std::string changed = stale->WhatChanged(core_->state()); !changed.empty()) {
      world_.judge.ReportViolation(invariant::kFenced, changed);
    }
  }
  world_.CountRound(count);
  world_.judge.AfterRound(*core_, world_.ShouldCheckState());
  if (!store.has_pending_commits()) return Deliver();
  busy_ = true;
  if (world_.mutation == Mutation::kReleaseEarly) Deliver();
  absl::Duration takes = world_.random.Between(absl::Microseconds(100), commit_time);
  world_.engine.After(takes, [this, incarnation = incarnation_] {
    if (incarnation != incarnation_) return;
    if (world_.mutation == Mutation::kDropRecord) store.lost_prefix = world_.random.Chance(0.02) ? "job/" : "";
    store.Sync();
    busy_ = false;
    Deliver();
    Round();
  });
}

void CoordinatorProcess::RunOne(Event event) {
  std::optional<StaleCheck> stale = StaleCheck::Of(event, core_->state());
  if (stale.has_value()) {
    RunLoop({});  // handles a due tick first, because the tick may change what StaleCheck compares
    if (!alive()) return;
    if (busy_) return waiting_.push_front(std::move(event));
    stale = StaleCheck::Of(event, core_->state());
  }
  if (stale.has_value() && world_.mutation == Mutation::kTakeStale) ForgeCurrent(event, core_->state());
  std::vector<Event> one;
  one.push_back(std::move(event));
  stale_ = std::move(stale);
  RunLoop(std::move(one));
}

void CoordinatorProcess::Release(Effect effect) { effects_.push_back(std::move(effect)); }

void CoordinatorProcess::Deliver() {
  const uint64_t incarnation = incarnation_;
  for (Effect& effect : std::exchange(effects_, {})) {
    if (!alive() || incarnation != incarnation_) return;
    Perform(effect);
  }
}

void CoordinatorProcess::Perform(Effect& effect) {
  std::visit([this](auto& what) { Do(what); }, effect);
}

void CoordinatorProcess::Do(Reply& effect) {
  auto at = calls_.find(effect.call);
  if (at == calls_.end()) return;
  Answer answer = std::move(at->second);
  calls_.erase(at);
  answer(std::move(effect));
}

void CoordinatorProcess::Do(WatchBatch& effect) {
  auto at = watchers_.find(effect.watch);
  if (at != watchers_.end()) at->second.batch(effect);
}

void CoordinatorProcess::Do(EndWatch& effect) {
  auto at = watchers_.find(effect.watch);
  if (at == watchers_.end()) return;
  Watcher watcher = std::move(at->second);
  watchers_.erase(at);
  watcher.ended(effect.status);
}

void CoordinatorProcess::Do(SendToHost& effect) {
  if (effect.message.has_desired()) world_.RecordGrants(*effect.message.mutable_desired());
  world_.network.SendToDaemon(effect.session, std::move(effect.message));
}
void CoordinatorProcess::Do(EndSession& effect) { world_.network.EndByCoordinator(effect.session, effect.status); }

// Sends all values each time: a host must accept those that it already has.
void CoordinatorProcess::Do(SendValues& effect) {
  v1::CoordinatorMessage message;
  v1::StoreValues& values = *message.mutable_values();
  values.set_job_id(effect.log->job.value());
  values.set_generation(effect.log->generation);
  v1::StoreValueList list;
  for (const ValuePtr& value : effect.log->values) *list.add_values() = *value;
  values.set_values(list.SerializeAsString());
  values.set_count(static_cast<uint32_t>(list.values_size()));
  for (SessionId session : *effect.sessions) world_.network.SendToDaemon(session, message);
}

void CoordinatorProcess::Do(WriteLog& effect) {
  world_.judge.Trace(absl::StrCat("coordinator: ", effect.text));
  world_.RecordLogLine(effect.text);
  // An error in the log shows a bug, unless the disk is full.
  if (effect.level == WriteLog::Level::kError && !store.full)
    world_.judge.ReportViolation(invariant::kConsistent, effect.text);
}

void CoordinatorProcess::Do(JobPublished& effect) {
  world_.HandlePublished(effect.job, *effect.event);
  v1::Event event = *effect.event;
  const bool state = world_.mutation == Mutation::kEmptyReason && event.has_state();
  const bool notice = world_.mutation == Mutation::kEmptyNotice && event.has_notice();
  if (state && world_.random.Chance(0.1)) event.mutable_state()->clear_reason();
  if (notice && world_.random.Chance(0.1)) event.mutable_notice()->clear_text();
  world_.judge.CheckEvent(effect.job, event);
}

}  // namespace trainyard::sim
