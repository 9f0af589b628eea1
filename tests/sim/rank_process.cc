#include "tests/sim/rank_process.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace trainyard::sim {

void RankProcess::Do(std::function<void()> action) {
  if (ended_) return;
  if (frozen_) {
    deferred_.push_back(std::move(action));
  } else {
    action();
  }
}

void RankProcess::Freeze() {
  if (ended_) return;
  world_.judge.Trace(absl::StrCat(machine_.name(), ": ", agent::Describe(id_), " is stopped"));
  world_.judge.NoteHarm(agent::GroupOf(id_), "a rank was stopped");
  frozen_ = true;
}

void RankProcess::Thaw() {
  if (ended_ || !frozen_) return;
  world_.judge.Trace(absl::StrCat(machine_.name(), ": ", agent::Describe(id_), " continues"));
  frozen_ = false;
  for (auto& action : std::exchange(deferred_, {})) Do(std::move(action));
}

void RankProcess::SetEnded() {
  ended_ = true;
  deferred_.clear();
  world_.judge.Truth(pid_).ended = true;
}

}  // namespace trainyard::sim
