#include "tests/sim/script.h"

#include <algorithm>
#include <csignal>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace trainyard::sim {
namespace {

// The time limits of the script itself: one until all ranks have connected, and one for each collective.
constexpr absl::Duration kJoinLimit = absl::Seconds(60);
constexpr absl::Duration kCollectiveLimit = absl::Seconds(20);
constexpr absl::Duration kPollInterval = absl::Milliseconds(200);

}  // namespace

// ---- the group ----

void ScriptGroup::Join(Script* script) {
  members_[script->id().rank] = script;
  if (!over_ && members_.size() == ranks_) return Begin();
  world_.engine.After(kJoinLimit, [self = shared_from_this(), weak = script->weak_from_this()] {
    const std::shared_ptr<Script> waiting = weak.lock();
    if (self->begun_ || waiting == nullptr) return;
    self->world_.judge.NoteHarm(self->id_, "a rank waited too long for the others");
    waiting->ExitLater(1, absl::ZeroDuration(), kPollInterval);
  });
}

void ScriptGroup::Begin() {
  begun_ = true;
  world_.judge.Began(id_);
  done_ = world_.script_progress[id_.first];
  world_.judge.Trace(absl::StrCat(id_.first.value(), " generation ", id_.second.value(), ": ", ranks_,
                                  " ranks continue after ", done_, " units"));
  if (done_ >= plan_.steps) return Finish();
  world_.engine.After(plan_.step_time, [self = shared_from_this()] { self->Work(); });
}

bool ScriptGroup::CanWork() const {
  std::set<const Machine*> hosts;
  for (const auto& [rank, script] : members_) {
    if (script->frozen()) return false;
    hosts.insert(&script->machine());
  }
  return hosts.size() == 1 || world_.AllReachEachOther(hosts);
}

void ScriptGroup::Work() {
  if (over_) return;
  if (!CanWork()) {
    blocked_since_ = std::min(blocked_since_, world_.engine.now());
    if (world_.engine.now() - blocked_since_ >= kCollectiveLimit) {
      world_.judge.NoteHarm(id_, "a collective of the script took too long");
      return FailRest(absl::ZeroDuration(), kPollInterval);
    }
    world_.engine.After(kPollInterval, [self = shared_from_this()] { self->Work(); });
    return;
  }
  blocked_since_ = absl::InfiniteFuture();
  ++done_;
  const bool saves = plan_.save_every > 0 && done_ % plan_.save_every == 0;
  // An earlier generation that is cut off may still run, and overwrite what a newer generation has stored.
  if (saves || done_ >= plan_.steps) world_.script_progress[id_.first] = done_;
  if (done_ >= plan_.steps) return Finish();
  world_.engine.After(plan_.step_time, [self = shared_from_this()] { self->Work(); });
}

// All work is done: each rank exits with 0, at a time of its own.
void ScriptGroup::Finish() {
  over_ = true;
  world_.judge.ScriptIsDone(id_.first);
  for (auto& [rank, script] : members_) script->ExitLater(0, absl::Milliseconds(1), absl::Seconds(2));
}

void ScriptGroup::FailRest(absl::Duration shortest, absl::Duration longest) {
  over_ = true;
  for (auto& [rank, script] : members_) script->ExitLater(1, shortest, longest);
}

void ScriptGroup::Leave(Script* script, bool noticed) {
  if (members_.erase(script->id().rank) == 0 || over_ || !begun_) return;
  if (noticed) return FailRest(absl::Milliseconds(1), absl::Seconds(1));
  FailRest(kCollectiveLimit, 2 * kCollectiveLimit);
}

// ---- one rank ----

Script::Script(World& world, Machine& machine, const agent::TrainerId& id, int64_t pid, uint32_t ranks,
               const JobPlan& plan)
    : RankProcess(world, machine, id, pid),
      ignores_stop_(plan.ignores_stop),
      group_(world.ScriptGroupFor(agent::GroupOf(id), ranks)) {}

void Script::Boot() {
  world_.engine.After(world_.random.Between(absl::Milliseconds(50), absl::Seconds(2)),
                      [self = shared_from_this()] { self->Do([self] { self->group_->Join(self.get()); }); });
}

void Script::ExitLater(int code, absl::Duration shortest, absl::Duration longest) {
  world_.engine.After(world_.random.Between(shortest, longest),
                      [self = shared_from_this(), code] { self->Do([self, code] { self->Exit(code); }); });
}

void Script::Exit(int code) {
  if (code == 0) world_.judge.Truth(pid_).finished = true;
  v1::TrainerExited exited;
  exited.set_cause(v1::TrainerExited::CAUSE_EXIT);
  exited.set_code(code);
  End(std::move(exited));
}

void Script::Signal(int signal) {
  v1::TrainerExited exited;
  exited.set_cause(v1::TrainerExited::CAUSE_SIGNAL);
  exited.set_signal(signal);
  if (signal != SIGTERM) return End(std::move(exited));
  if (ignores_stop_) return;
  world_.engine.After(world_.random.Between(absl::Milliseconds(1), absl::Milliseconds(500)),
                      [self = shared_from_this(), exited] { self->Do([self, exited] { self->End(exited); }); });
}

void Script::End(v1::TrainerExited exited) {
  if (ended_) return;
  auto self = shared_from_this();
  SetEnded();
  world_.judge.Trace(absl::StrCat(machine_.name(), ": ", agent::Describe(id_), " ends, code ", exited.code(),
                                  " signal ", exited.signal()));
  group_->Leave(this, /*noticed=*/!machine_.data_cut());
  machine_.Ended(id_, exited);
}

void Script::Disconnect() {
  SetEnded();
  group_->Leave(this, /*noticed=*/false);
}

}  // namespace trainyard::sim
