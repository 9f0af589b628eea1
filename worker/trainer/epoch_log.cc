#include "worker/trainer/epoch_log.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace trainyard {

EpochLog::EpochLog(uint64_t samples, uint64_t consumed, const std::vector<EpochStep>& earlier, bool is_whole)
    : samples_(samples), ended_(samples == 0 ? 0 : consumed / samples), is_whole_(is_whole) {
  for (const EpochStep& step : earlier) Add(step);
}

void EpochLog::Add(const EpochStep& step) {
  if (first_step_ == 0) first_step_ = step.step;
  if (!std::isfinite(step.loss)) return;
  loss_sum_ += step.loss * static_cast<double>(step.tokens);
  tokens_ += static_cast<double>(step.tokens);
}

std::string EpochLog::Line(const EpochStep& step, uint64_t consumed) {
  if (samples_ == 0) return "";
  Add(step);
  const uint64_t ended = consumed / samples_;
  if (ended == ended_) return "";
  const std::string which =
      ended == ended_ + 1 ? absl::StrCat("Epoch ", ended) : absl::StrCat("Epochs ", ended_ + 1, " to ", ended);
  std::string line = tokens_ > 0 ? absl::StrFormat("%s: loss = %.4f", which, loss_sum_ / tokens_)
                                 : absl::StrCat(which, ": no step had a finite loss");
  if (!is_whole_) {
    absl::StrAppend(&line, " (since step ", first_step_, "; the losses of earlier steps are not known)");
  }
  ended_ = ended;
  first_step_ = 0;
  is_whole_ = true;
  loss_sum_ = tokens_ = 0;
  return line;
}

}  // namespace trainyard
