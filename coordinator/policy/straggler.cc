#include "coordinator/policy/straggler.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"

namespace trainyard {
namespace {

constexpr absl::Duration kSampleWindow = absl::Seconds(30);
constexpr absl::Duration kSampleInterval = absl::Seconds(3);
constexpr absl::Duration kMinSpan = absl::Seconds(10);      // samples of a shorter span give no result
constexpr absl::Duration kMinSlowTime = absl::Seconds(30);  // a rank that is slow for less time is no straggler
// Multiples of the median. The second is lower, so that a rank near the first does not alternate between both states.
constexpr double kSlowFactor = 1.3;
constexpr double kNormalFactor = 1.2;
// Smaller differences are caused by the scheduler of a busy host and are not reported.
constexpr double kMinDifference = 1e-3;

// The median of the sorted `values` without the one at `index`. REQUIRES: at least two values.
double MedianWithout(const std::vector<double>& values, size_t index) {
  size_t others = values.size() - 1;
  auto at = [&](size_t i) { return values[i < index ? i : i + 1]; };
  return others % 2 == 1 ? at(others / 2) : (at(others / 2 - 1) + at(others / 2)) / 2;
}

}  // namespace

void ComputeWindow::Add(absl::Time at, double compute_s, uint64_t micro_batches, uint64_t steps, double wait_s) {
  // A total that decreases belongs to a new process.
  if (!samples_.empty() && micro_batches < samples_.back().micro_batches) samples_.clear();
  if (!samples_.empty() && at - samples_.back().at < kSampleInterval) return;
  samples_.push_back({at, compute_s, micro_batches, steps, wait_s});
  while (samples_.size() > 2 && at - samples_[1].at >= kSampleWindow) samples_.pop_front();
}

const ComputeWindow::Sample* ComputeWindow::First() const {
  if (samples_.size() < 2 || samples_.back().at - samples_.front().at < kMinSpan) return nullptr;
  return &samples_.front();
}

double ComputeWindow::MicroBatchSeconds() const {
  const Sample* first = First();
  if (first == nullptr || samples_.back().micro_batches <= first->micro_batches) return 0;
  return (samples_.back().compute_s - first->compute_s) /
         static_cast<double>(samples_.back().micro_batches - first->micro_batches);
}

double ComputeWindow::StepSeconds() const {
  const Sample* first = First();
  if (first == nullptr || samples_.back().steps <= first->steps) return 0;
  return (samples_.back().compute_s - first->compute_s) / static_cast<double>(samples_.back().steps - first->steps);
}

double ComputeWindow::WaitShare() const {
  const Sample* first = First();
  if (first == nullptr) return 0;
  double waited = samples_.back().wait_s - first->wait_s;
  double computed = samples_.back().compute_s - first->compute_s;
  return waited > 0 && computed >= 0 ? waited / (waited + computed) : 0;
}

std::vector<StragglerChange> FindStragglers(absl::Time now, std::vector<StragglerFacts>& ranks) {
  std::vector<StragglerChange> changes;
  std::map<uint64_t, std::vector<double>> by_stage;
  for (const StragglerFacts& rank : ranks) {
    if (rank.micro_batch_s > 0) by_stage[rank.stage].push_back(rank.micro_batch_s);
  }
  for (auto& [stage, seconds] : by_stage) std::sort(seconds.begin(), seconds.end());
  const bool is_pipeline =
      std::any_of(ranks.begin(), ranks.end(), [](const StragglerFacts& rank) { return rank.stage > 0; });
  for (StragglerFacts& rank : ranks) {
    if (rank.micro_batch_s <= 0) continue;
    const std::vector<double>& sorted = by_stage[rank.stage];
    if (sorted.size() < 2) continue;
    size_t index =
        static_cast<size_t>(std::lower_bound(sorted.begin(), sorted.end(), rank.micro_batch_s) - sorted.begin());
    double median = MedianWithout(sorted, index);
    double limit = rank.is_straggler ? kNormalFactor : kSlowFactor;
    bool is_slow = rank.micro_batch_s > limit * median && rank.micro_batch_s - median > kMinDifference;
    if (!is_slow) rank.slow_since = absl::InfiniteFuture();
    if (is_slow && rank.slow_since == absl::InfiniteFuture()) rank.slow_since = now;
    bool is_straggler = is_slow && (rank.is_straggler || now - rank.slow_since >= kMinSlowTime);
    if (is_straggler == rank.is_straggler) continue;
    rank.is_straggler = is_straggler;
    changes.push_back({.rank = rank.rank,
                       .is_straggler = is_straggler,
                       .text = absl::StrFormat("rank %d on %s is %s: %.1f ms per micro-batch, %.2f times the median of "
                                               "the other ranks%s",
                                               rank.rank, rank.host, is_straggler ? "slow" : "no longer slow",
                                               rank.micro_batch_s * 1e3, rank.micro_batch_s / median,
                                               is_pipeline ? absl::StrFormat(" of stage %d", rank.stage) : "")});
  }
  return changes;
}

}  // namespace trainyard
