#include "client/run_stats.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace trainyard::client {

double TokensPerSecond(const v1::StepReport& step) {
  return step.step_s() > 0 ? static_cast<double>(step.tokens()) / step.step_s() : 0;
}

void RunStats::Add(const v1::Event& event) {
  if (event.has_state()) {
    restarts_ = std::max(restarts_, event.state().restarts());
  } else if (event.has_eval()) {
    newest_eval_ = event.eval();
  } else if (event.has_checkpoint()) {
    // A script may answer a request to save with a checkpoint that it has reported before.
    const bool is_repeated = newest_checkpoint_.has_value() &&
                             newest_checkpoint_->generation() == event.checkpoint().generation() &&
                             newest_checkpoint_->step() == event.checkpoint().step();
    if (!is_repeated) ++checkpoints_;
    newest_checkpoint_ = event.checkpoint();
  } else if (event.has_step()) {
    const v1::StepReport& step = event.step();
    if (steps_ == 0) {
      first_step_ = step.step();
    }
    ++steps_;
    last_step_ = step.step();
    if (step.has_loss()) AddLoss(step);
    tokens_ += step.tokens();
    step_seconds_ += step.step_s();
    // The first step includes one-time costs, so the second step replaces it in the moving averages.
    constexpr double kNewWeight = 0.1;
    const double weight = steps_ <= 2 ? 1 : kNewWeight;
    recent_step_seconds_ += weight * (step.step_s() - recent_step_seconds_);
    recent_step_tokens_ += weight * (static_cast<double>(step.tokens()) - recent_step_tokens_);
  }
}

void RunStats::AddLoss(const v1::StepReport& step) {
  const std::pair<uint64_t, double> loss(step.step(), step.loss());
  if (losses_++ == 0) first_loss_ = loss;
  last_loss_ = loss;
  if (losses_ % curve_stride_ != 0 && losses_ != 1) return;
  curve_.push_back(loss);
  if (curve_.size() < kCurvePoints) return;
  for (size_t i = 0; 2 * i < curve_.size(); ++i) curve_[i] = curve_[2 * i];
  curve_.resize((curve_.size() + 1) / 2);
  curve_stride_ *= 2;
}

std::string LossesText(const RunStats& stats) {
  if (!stats.has_loss()) return "";
  return absl::StrFormat("%.4f at step %d, %.4f at step %d", stats.first_loss(), stats.first_loss_step(),
                         stats.last_loss(), stats.last_loss_step());
}

double RunStats::TokensPerSecond() const {
  return step_seconds_ > 0 ? static_cast<double>(tokens_) / step_seconds_ : 0;
}

double RunStats::RecentTokensPerSecond() const {
  return recent_step_seconds_ > 0 ? recent_step_tokens_ / recent_step_seconds_ : 0;
}

absl::optional<absl::Duration> RunStats::TimeLeft(uint64_t steps_total) const {
  if (steps_ == 0 || steps_total < last_step_) return absl::nullopt;
  return absl::Seconds(static_cast<double>(steps_total - last_step_) * recent_step_seconds_);
}

}  // namespace trainyard::client
