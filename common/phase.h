// The phases of a rank, as trainers report them and status shows them (RankStatus.phase). Pure.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace trainyard {

// kTokenize, kLoad: the ranks build or open the token cache, then read the initial weights or a checkpoint. Before it
// joins, rank 0 is in kLoad too, while it verifies what earlier generations left in checkpoint.dir. How long that takes
// depends on the files, so no limit of time applies while these ranks report.
// kLeaving: all steps are made, and the rank waits for the coordinator's answer about the last save. How long that
// takes depends on the network, so no limit is learned for it (coordinator/handlers/rank_progress.cc).
enum class Phase {
  kStarting,
  kJoining,
  kTokenize,
  kLoad,
  kReady,
  kFirstStep,
  kTrain,
  kEvaluate,
  kSave,
  kLeaving,
  kEnded
};

// "first_step".
const char* PhaseName(Phase phase);

// None: this version does not know the phase; a newer trainer may have reported it.
std::optional<Phase> ParsePhase(absl::string_view name);

// A phase as a rank reported it. One that this version does not know is kept as text, so that status can show it.
class ReportedPhase {
 public:
  ReportedPhase() = default;                                              // none was reported; its name is empty
  ReportedPhase(Phase phase) : known_(phase), name_(PhaseName(phase)) {}  // NOLINT(google-explicit-constructor)
  explicit ReportedPhase(std::string name) : known_(ParsePhase(name)), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  // None: this version does not know it.
  std::optional<Phase> known() const { return known_; }
  bool operator==(Phase phase) const { return known_ == phase; }
  bool operator==(const ReportedPhase& other) const { return name_ == other.name_; }
  bool operator<(const ReportedPhase& other) const { return name_ < other.name_; }

 private:
  std::optional<Phase> known_;
  std::string name_;
};

}  // namespace trainyard
