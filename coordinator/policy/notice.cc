#include "coordinator/policy/notice.h"

#include <cstddef>
#include <iterator>

namespace trainyard {
namespace {

// The names are in the order of the enums. Notice.rule in service.proto lists the rules, too.
constexpr const char* kLevels[] = {"info", "warning", "error"};
constexpr const char* kRules[] = {"",         "placement",  "restart",   "give_up",  "host_lost",
                                  "abandon",  "hang",       "straggler", "network",  "disk",
                                  "adoption", "checkpoint", "resume",    "operator", "preemption"};
static_assert(std::size(kLevels) == static_cast<size_t>(NoticeLevel::kError) + 1);
static_assert(std::size(kRules) == static_cast<size_t>(DecisionRule::kPreemption) + 1);

}  // namespace

const char* LevelName(NoticeLevel level) { return kLevels[static_cast<size_t>(level)]; }

const char* RuleName(DecisionRule rule) { return kRules[static_cast<size_t>(rule)]; }

}  // namespace trainyard
