#include "coordinator/policy/elastic.h"

#include "absl/strings/str_cat.h"

namespace trainyard {

GrowthDecision DecideGrowth(const GrowthFacts& facts) {
  if (facts.possible <= facts.ranks || facts.others_wait) return {};
  if (facts.running_for < facts.patience || facts.fit_for < facts.patience) return {};
  return {.grow = true,
          .reason = absl::StrCat(
              "grows from ", facts.ranks, " to ", facts.possible, " ranks: slots for them have been free for ",
              absl::FormatDuration(absl::Trunc(facts.fit_for, absl::Seconds(1))), " (command.grow_after_s)")};
}

}  // namespace trainyard
