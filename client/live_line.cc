#include "client/live_line.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/text.h"

namespace trainyard::client {
namespace {

constexpr size_t kBarColumnsMin = 8;
constexpr size_t kBarColumnsMax = 24;

std::string Bar(double share, size_t columns, const TerminalTraits& traits) {
  const auto filled = static_cast<size_t>(share * static_cast<double>(columns));
  std::string done, rest;
  for (size_t i = 0; i < columns; ++i) {
    absl::StrAppend(i < filled ? &done : &rest, traits.unicode ? (i < filled ? "█" : "░") : i < filled ? "#" : ".");
  }
  return absl::StrCat(Styled(done, Style::kGood, traits.colour), rest);
}

}  // namespace

std::string LiveLine(const v1::StepReport& step, uint64_t steps_total, const RunStats& stats,
                     const TerminalTraits& traits) {
  const double share =
      steps_total == 0 ? 1 : std::min(1.0, static_cast<double>(step.step()) / static_cast<double>(steps_total));
  const absl::optional<absl::Duration> time_left =
      step.step() < steps_total ? stats.TimeLeft(steps_total) : absl::nullopt;
  // The number of steps that a script will make is not known.
  const std::string percent = steps_total > 0 ? absl::StrFormat("%3d %%", static_cast<int>(share * 100)) : "";
  // The parts from the most to the least important: if the line is too long, the last ones are dropped first.
  enum Part { kStep, kLoss, kEta, kTokensPerSecond, kLearningRate, kParts };
  std::array<std::string, kParts> parts;
  parts[kStep] = absl::StrCat("step ", step.step(), steps_total > 0 ? absl::StrCat("/", steps_total) : "");
  parts[kLoss] = step.has_loss() ? absl::StrFormat("loss %.4f", step.loss()) : "";
  parts[kEta] = time_left.has_value() ? absl::StrCat("ETA ", DurationText(*time_left)) : "";
  parts[kTokensPerSecond] = absl::StrCat(Amount(stats.RecentTokensPerSecond()), " tokens/s");
  parts[kLearningRate] = absl::StrFormat("lr %.1e", step.lr());
  // Leave the last column free, because some terminals wrap a line that fills it.
  const size_t space = static_cast<size_t>(std::max(traits.columns - 1, 1));
  size_t used = percent.size();
  for (int i = kStep; i < kParts; ++i) {
    // A bar of minimum width is more important than speed and learning rate.
    const size_t reserved_for_bar = i > kEta ? 1 + kBarColumnsMin : 0;
    if (parts[i].empty()) continue;
    if (used + 2 + parts[i].size() + reserved_for_bar > space) {
      parts[i].clear();
    } else {
      used += 2 + parts[i].size();
    }
  }
  const size_t bar =
      steps_total > 0 && used + 1 + kBarColumnsMin <= space ? std::min(kBarColumnsMax, space - used - 1) : 0;
  std::string line = percent;
  if (bar > 0) absl::StrAppend(&line, " ", Bar(share, bar, traits));
  for (Part part : {kStep, kLoss, kTokensPerSecond, kEta, kLearningRate}) {
    if (!parts[part].empty()) absl::StrAppend(&line, "  ", parts[part]);
  }
  return line;
}

}  // namespace trainyard::client
