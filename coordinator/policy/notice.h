// The level of a notice (service.proto) and the rule by which a decision was made, with their names on the wire. Pure.
#pragma once

namespace trainyard {

enum class NoticeLevel { kInfo, kWarning, kError };

// "warning".
const char* LevelName(NoticeLevel level);

enum class DecisionRule {
  kNone,  // not a decision
  kPlacement,
  kRestart,
  kGiveUp,
  kHostLost,
  kAbandon,
  kHang,
  kStraggler,
  kNetwork,
  kDisk,
  kAdoption,
  kCheckpoint,
  kResume,
  kOperator,
  kPreemption,
};
inline constexpr DecisionRule kLastDecisionRule = DecisionRule::kPreemption;

// "host_lost"; empty for kNone.
const char* RuleName(DecisionRule rule);

}  // namespace trainyard
