#include "worker/saving/save_policy.h"

#include <algorithm>

namespace trainyard {
namespace {

// The largest number of steps between two tries if there is no every_steps to limit it.
constexpr uint64_t kStepsBetweenTries = 128;

}  // namespace

void SavePolicy::ScheduleRetry(uint64_t step) {
  const uint64_t delay_max = every_steps_ > 0 ? every_steps_ : kStepsBetweenTries;
  retry_at_ = step + std::min(delay_max, uint64_t{1} << std::min<uint64_t>(failures_, 32));
  ++failures_;
}

SavePolicy::Outcome SavePolicy::Update(uint64_t step, const Sums& sums) {
  if (sums.requests > requests_) {
    requests_ = sums.requests;
    queued_ = true;
  }
  if (sums.commits_failed > commits_failed_) {
    commits_failed_ = sums.commits_failed;
    commit_failed_ = true;
    ScheduleRetry(step);
  }
  if (!under_way_.has_value() || sums.of_step <= *under_way_ || (sums.ended < world_size_ && !sums.given_up))
    return Outcome::kNothing;
  const bool failed = sums.failed > 0 || sums.given_up;
  under_way_.reset();
  if (failed) {
    if (!waited_) ScheduleRetry(step);
    return Outcome::kFailed;
  }
  if (!queued_) waits_ = true;
  if (!commit_failed_) failures_ = 0;
  commit_failed_ = false;
  return Outcome::kWritten;
}

bool SavePolicy::WantsSave(uint64_t step, bool due) const {
  return due || queued_ || (retry_at_.has_value() && step >= *retry_at_);
}

SavePolicy::Action SavePolicy::AtBoundary(uint64_t step, bool due) {
  if (!WantsSave(step, due)) return Action::kNothing;
  if (!under_way_.has_value()) return Action::kBegin;
  if (due && waits_) return Action::kAwait;
  queued_ = true;
  return Action::kNothing;
}

void SavePolicy::Began(uint64_t step, bool waited) {
  under_way_ = step;
  waited_ = waited;
  queued_ = false;
  retry_at_.reset();
}

}  // namespace trainyard
