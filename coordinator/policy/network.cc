#include "coordinator/policy/network.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace trainyard {
namespace {

constexpr absl::Duration kWindow = absl::Seconds(2);
// An older result is outdated: the rank makes no steps, or its reports do not arrive.
constexpr absl::Duration kMaxResultAge = absl::Seconds(6);
constexpr double kSlowWaitFactor = 3;
constexpr double kMinSlowSeconds = 0.010;  // the scheduler of a busy host causes smaller delays
constexpr double kSlowComputeFactor = 2;
constexpr size_t kMaxHostsNamed = 4;

// A host's messages count as late above the first delay, and as punctual again below the second.
constexpr absl::Duration kLateAbove = absl::Milliseconds(40);
constexpr absl::Duration kPunctualBelow = absl::Milliseconds(20);
constexpr int kInARow = 3;  // consecutive messages beyond a threshold before a change is reported
// The reference is the fastest message of the current interval and of the previous one.
constexpr absl::Duration kBestInterval = absl::Minutes(1);

}  // namespace

void WaitTrend::Add(absl::Time at, double compute_s, double wait_s, uint64_t steps) {
  const Totals now{.at = at, .compute_s = compute_s, .wait_s = wait_s, .steps = steps};
  // Totals that decrease belong to a new process.
  const bool restarted = first_.has_value() && (steps < first_->steps || compute_s < first_->compute_s);
  if (!first_.has_value() || restarted) {
    if (restarted) *this = WaitTrend();
    first_ = now;
    return;
  }
  if (at - first_->at < kWindow || steps == first_->steps) return;
  const double steps_made = static_cast<double>(steps - first_->steps);
  checked_at_ = at;
  UpdateUsual((compute_s - first_->compute_s) / steps_made, (wait_s - first_->wait_s) / steps_made);
  first_ = now;
}

void WaitTrend::UpdateUsual(double compute_s, double wait_s) {
  wait_s_ = wait_s;
  const bool computes_longer = compute_s > kSlowComputeFactor * usual_compute_s_ + kMinSlowSeconds / 10;
  slow_ = known_ && wait_s > kSlowWaitFactor * usual_wait_s_ + kMinSlowSeconds && !computes_longer;
  if (slow_) return;
  const double weight = known_ ? 0.25 : 1;
  known_ = true;
  usual_wait_s_ += weight * (wait_s - usual_wait_s_);
  usual_compute_s_ += weight * (compute_s - usual_compute_s_);
}

std::string FindSlowNetwork(absl::Time now, const std::vector<WaitingRank>& ranks) {
  std::set<absl::string_view> hosts;
  const WaitTrend* shortest = nullptr;
  for (const WaitingRank& rank : ranks) {
    if (!rank.trend->is_slow() || now - rank.trend->checked_at() > kMaxResultAge) return "";
    if (shortest == nullptr || rank.trend->wait_s() < shortest->wait_s()) shortest = rank.trend;
    hosts.insert(rank.host);
  }
  if (hosts.size() < 2) return "";
  std::vector<std::string> names;
  for (absl::string_view host : hosts) {
    names.push_back(names.size() < kMaxHostsNamed ? std::string(host) : "...");
    if (names.size() > kMaxHostsNamed) break;
  }
  return absl::StrFormat(
      "the network between hosts %s is slow or loses packets: a step waits %.0f ms for the other ranks "
      "(before: %.1f ms), while its computing time is unchanged",
      absl::StrJoin(names, ", "), shortest->wait_s() * 1e3, shortest->usual_wait_s() * 1e3);
}

bool WaitsAsUsual(absl::Time now, const std::vector<WaitingRank>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [now](const WaitingRank& rank) {
    return !rank.trend->is_slow() && now - rank.trend->checked_at() <= kMaxResultAge;
  });
}

void ArrivalTrend::AddIfFast(absl::Time at, absl::Duration clock_offset) {
  best_ = std::max(best_, clock_offset);
  if (since_ == absl::InfinitePast()) since_ = at;
}

ArrivalTrend::Change ArrivalTrend::Add(absl::Time at, absl::Duration clock_offset) {
  // The old reference is dropped after some time, because a host's clock may be set or may drift.
  if (at - since_ >= kBestInterval) {
    best_before_ = best_;
    best_ = clock_offset;
    since_ = at;
  }
  best_ = std::max(best_, clock_offset);
  late_by_ = std::max(best_, best_before_) - clock_offset;
  const bool changes = late_ ? late_by_ < kPunctualBelow : late_by_ > kLateAbove;
  in_a_row_ = changes ? in_a_row_ + 1 : 0;
  if (in_a_row_ < kInARow) return Change::kNone;
  in_a_row_ = 0;
  late_ = !late_;
  return late_ ? Change::kLate : Change::kPunctual;
}

}  // namespace trainyard
