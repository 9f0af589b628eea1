#include "common/phase.h"

#include <cstddef>
#include <iterator>

namespace trainyard {
namespace {

// In the order of the enum.
constexpr const char* kNames[] = {"starting", "joining",  "tokenize", "load",    "ready", "first_step",
                                  "train",    "evaluate", "save",     "leaving", "ended"};
static_assert(std::size(kNames) == static_cast<size_t>(Phase::kEnded) + 1);

}  // namespace

const char* PhaseName(Phase phase) { return kNames[static_cast<size_t>(phase)]; }

std::optional<Phase> ParsePhase(absl::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<Phase>(i);
  }
  return std::nullopt;
}

}  // namespace trainyard
