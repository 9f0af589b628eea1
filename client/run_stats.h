// Statistics of a run for the summary, the plot and the estimate of the remaining time. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

class RunStats {
 public:
  void Add(const v1::Event& event);

  uint64_t first_step() const { return first_step_; }  // 0: no step seen
  uint64_t last_step() const { return last_step_; }
  uint64_t steps() const { return steps_; }
  // A script may report steps without losses.
  bool has_loss() const { return losses_ > 0; }
  double first_loss() const { return first_loss_.second; }
  uint64_t first_loss_step() const { return first_loss_.first; }
  double last_loss() const { return last_loss_.second; }
  uint64_t last_loss_step() const { return last_loss_.first; }
  uint64_t tokens() const { return tokens_; }
  double step_seconds() const { return step_seconds_; }
  uint32_t restarts() const { return restarts_; }
  uint64_t checkpoints() const { return checkpoints_; }
  const absl::optional<v1::CheckpointInfo>& newest_checkpoint() const { return newest_checkpoint_; }
  const absl::optional<v1::EvalReport>& newest_eval() const { return newest_eval_; }

  // Mean over all steps seen.
  double TokensPerSecond() const;
  // Mean over about the last twenty steps.
  double RecentTokensPerSecond() const;
  // The time from the last step to `steps_total` at the recent speed; nullopt before any step, or if `steps_total` is
  // below the last step.
  absl::optional<absl::Duration> TimeLeft(uint64_t steps_total) const;

  // (step, loss), thinned evenly to at most kCurvePoints.
  const std::vector<std::pair<uint64_t, double>>& curve() const { return curve_; }

  static constexpr size_t kCurvePoints = 4096;

 private:
  void AddLoss(const v1::StepReport& step);

  uint64_t first_step_ = 0, last_step_ = 0, steps_ = 0, tokens_ = 0, checkpoints_ = 0, losses_ = 0;
  std::pair<uint64_t, double> first_loss_, last_loss_;  // step, loss
  double step_seconds_ = 0;
  double recent_step_seconds_ = 0, recent_step_tokens_ = 0;
  uint32_t restarts_ = 0;
  absl::optional<v1::CheckpointInfo> newest_checkpoint_;
  absl::optional<v1::EvalReport> newest_eval_;
  std::vector<std::pair<uint64_t, double>> curve_;
  uint64_t curve_stride_ = 1;
};

// "5.0000 at step 1, 2.5000 at step 20"; empty if no step had a loss.
std::string LossesText(const RunStats& stats);

// Tokens of all ranks in a step divided by its wall time; 0 if the time is 0.
double TokensPerSecond(const v1::StepReport& step);

}  // namespace trainyard::client
