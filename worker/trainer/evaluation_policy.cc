#include "worker/trainer/evaluation_policy.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/plural.h"

namespace trainyard {
namespace {

bool IsLower(double loss, const std::optional<double>& than) { return !than.has_value() || loss < *than; }

}  // namespace

std::string EvaluationPolicy::Restore(const Restored& restored) {
  if (restored.evaluation.tokens != settings_.tokens) {
    return absl::StrFormat(
        "the evaluation covers %s, and covered %s before the checkpoint: the search for the lowest loss begins again",
        Plural(settings_.tokens, "token"), Plural(restored.evaluation.tokens, "token"));
  }
  if (restored.evaluation.data_hash != settings_.data_hash) {
    return restored.evaluation.data_hash.empty()
               ? "the checkpoint does not record which data its evaluations covered: the search for the lowest loss "
                 "begins again"
               : "the evaluation covers other data than before the checkpoint: the search for the lowest loss begins "
                 "again";
  }
  state_ = restored.evaluation;
  state_.loss.reset();
  if (!settings_.keep_best) state_.lowest_saved.reset();
  step_ = restored.step;
  if (restored.evaluation.loss.has_value()) newest_finite_ = {.step = restored.step, .loss = *restored.evaluation.loss};
  if (restored.of_this_job || settings_.patience == 0 || state_.without_improvement < settings_.patience) return "";
  state_.without_improvement = 0;
  return absl::StrCat("the run had ended early, after step ", restored.step,
                      ", and was resumed: evaluations without a lower loss are counted from zero");
}

void EvaluationPolicy::Observe(uint64_t step, double loss, bool counts) {
  step_ = step;
  must_save_ = false;
  if (counts) ++state_.without_improvement;
  if (!std::isfinite(loss)) return;
  newest_finite_ = {.step = step, .loss = loss};
  const bool is_lower = !state_.best_loss.has_value() || loss < *state_.best_loss - settings_.min_delta;
  if (counts && is_lower) {
    state_.best_loss = loss;
    state_.best_step = step;
    state_.without_improvement = 0;
  }
  const bool is_expected_lowest = !expected_.has_value() || loss < expected_->loss;
  must_save_ = settings_.keep_best && is_expected_lowest && IsLower(loss, state_.lowest_saved);
  if (must_save_) expected_ = {.step = step, .loss = loss};
}

void EvaluationPolicy::NoteSaves(uint64_t written, uint64_t failed_commits) {
  if (failed_commits > failed_commits_) {
    // The checkpoint with the lowest loss may be missing, so the next evaluated step is saved, which costs little.
    failed_commits_ = failed_commits;
    state_.lowest_saved.reset();
    expected_.reset();
    return;
  }
  if (!expected_.has_value() || written < expected_->step) return;
  if (written == expected_->step && IsLower(expected_->loss, state_.lowest_saved)) {
    state_.lowest_saved = expected_->loss;
  }
  expected_.reset();
}

std::string EvaluationPolicy::EndReason() const {
  if (settings_.patience == 0 || state_.without_improvement < settings_.patience) return "";
  const std::string count = Plural(state_.without_improvement, "evaluation");
  std::string text = absl::StrFormat("stopped after step %d of %d: ", step_, settings_.steps);
  if (!state_.best_loss.has_value()) {
    return absl::StrCat(text, count, " in a row ended without a finite loss (train.evaluate.patience)");
  }
  const std::string by = settings_.min_delta > 0 ? absl::StrCat(" by more than ", settings_.min_delta) : "";
  return absl::StrFormat("%sthe evaluation loss has not fallen%s for %s; it last fell at step %d, to %.4f", text, by,
                         count, state_.best_step, *state_.best_loss);
}

ManifestEvaluation EvaluationPolicy::StateAt(uint64_t step) const {
  ManifestEvaluation state = state_;
  if (!newest_finite_.has_value() || newest_finite_->step != step) return state;
  state.loss = newest_finite_->loss;
  if (settings_.keep_best && IsLower(*state.loss, state.lowest_saved)) state.lowest_saved = state.loss;
  return state;
}

}  // namespace trainyard
