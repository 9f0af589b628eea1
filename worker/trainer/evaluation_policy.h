// Decides after each evaluation whether training ends (train.evaluate.patience) and whether the evaluated step must be
// saved (checkpoint.keep_best). Every rank observes the same losses and outcomes of saves, so all decide alike. The
// state is a part of each checkpoint, so that a resumed run decides as an uninterrupted run does. Pure.
//
// An evaluation improves if its loss is finite and lower than that of the newest evaluation that improved, by more than
// min_delta. A run ends after `patience` consecutive evaluations that do not improve.
//
// [Note: saves of the best step] A save of the best step may fail, or begin at a later step because another save is
// under way. Therefore a loss is compared with the lowest loss that a checkpoint holds, and with the loss of the best
// step whose save was requested and has not ended. `checkpoint/catalog.h` finds the best checkpoint among those that
// exist.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/manifest.h"

namespace trainyard {

class EvaluationPolicy {
 public:
  struct Settings {
    uint64_t patience = 0;  // 0: training never ends early
    double min_delta = 0;
    bool keep_best = false;
    uint64_t steps = 0;   // of the job
    uint64_t tokens = 0;  // targets with a loss in one evaluation
    std::string data_hash = {};
  };
  // The checkpoint from which the run resumes.
  struct Restored {
    uint64_t step = 0;
    ManifestEvaluation evaluation = {};
    bool of_this_job = false;  // false: the user resumes another job's run
  };
  explicit EvaluationPolicy(Settings settings) : settings_(std::move(settings)) {
    state_.tokens = settings_.tokens;
    state_.data_hash = settings_.data_hash;
  }

  // Continues from the state of a checkpoint, and returns a line for the log, or nothing. A job that had ended early
  // ends again if it was restarted, but counts from zero if the user resumed its run. If the earlier evaluations
  // covered other data, the state is not used.
  std::string Restore(const Restored& restored);

  // `counts` is false for the evaluation after the last step if the interval does not require one there. That
  // evaluation does not count for patience, so that a run that is resumed with more steps decides as if it had had
  // these steps from the beginning.
  void Observe(uint64_t step, double loss, bool counts = true);
  // `written`: the step of the last save that every rank has written, 0 for none. `failed_commits`: how many saves of
  // this generation were written but did not become checkpoints.
  void NoteSaves(uint64_t written, uint64_t failed_commits);

  // Whether the step that was observed last must be saved.
  bool MustSave() const { return must_save_; }
  // Why training ends, as a sentence; empty: it continues.
  std::string EndReason() const;
  // Returns the state for the checkpoint of `step`, which is the step of the last evaluation or a later one.
  ManifestEvaluation StateAt(uint64_t step) const;

 private:
  struct Evaluated {
    uint64_t step = 0;
    double loss = 0;
  };

  const Settings settings_;
  ManifestEvaluation state_;  // without `loss`
  uint64_t step_ = 0;         // of the last evaluation
  std::optional<Evaluated> newest_finite_;
  std::optional<Evaluated> expected_;  // a save of this step was requested, and its outcome is not known yet
  bool must_save_ = false;
  uint64_t failed_commits_ = 0;
};

}  // namespace trainyard
