#include "foreign/key_rule.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace trainyard::foreign {
namespace {

using RuleList = std::vector<const KeyRule*>;

RuleList Sorted(std::initializer_list<absl::Span<const KeyRule>> tables) {
  RuleList rules;
  for (const absl::Span<const KeyRule>& table : tables) {
    for (const KeyRule& rule : table) rules.push_back(&rule);
  }
  std::sort(rules.begin(), rules.end(), [](const KeyRule* a, const KeyRule* b) { return a->key < b->key; });
  return rules;
}

}  // namespace

absl::string_view DialectName(Dialect dialect) {
  switch (dialect) {
    case Dialect::kAccelerate:
      return "Accelerate";
    case Dialect::kDeepSpeed:
      return "DeepSpeed";
    case Dialect::kTrainingArguments:
      return "transformers' TrainingArguments";
    case Dialect::kFsdpConfig:
      return "transformers' fsdp_config";
  }
  return "";
}

const RuleList& RulesOf(Dialect dialect) {
  static const auto* const accelerate = new RuleList(Sorted({AccelerateRules(), AccelerateBlockRules(), FsdpRules()}));
  static const auto* const deepspeed = new RuleList(Sorted({DeepSpeedRules(), ZeroRules()}));
  static const auto* const trainer = new RuleList(Sorted({TrainerRules(), FsdpRules()}));
  static const auto* const fsdp = new RuleList(Sorted({FsdpRules()}));
  switch (dialect) {
    case Dialect::kAccelerate:
      return *accelerate;
    case Dialect::kDeepSpeed:
      return *deepspeed;
    case Dialect::kTrainingArguments:
      return *trainer;
    case Dialect::kFsdpConfig:
      break;
  }
  return *fsdp;
}

const KeyRule* FindRule(Dialect dialect, absl::string_view key) {
  const RuleList& rules = RulesOf(dialect);
  const auto at = std::lower_bound(rules.begin(), rules.end(), key,
                                   [](const KeyRule* rule, absl::string_view wanted) { return rule->key < wanted; });
  return at != rules.end() && (*at)->key == key ? *at : nullptr;
}

std::vector<std::string> KeysIn(Dialect dialect, absl::string_view parent) {
  std::vector<std::string> keys;
  const std::string prefix = parent.empty() ? "" : absl::StrCat(parent, ".");
  for (const KeyRule* rule : RulesOf(dialect)) {
    absl::string_view rest = rule->key;
    if (absl::ConsumePrefix(&rest, prefix) && !absl::StrContains(rest, ".")) keys.emplace_back(rest);
  }
  return keys;
}

std::string CanonicalKey(absl::string_view parent, absl::string_view key) {
  if (parent == "fsdp_config") key = absl::StripPrefix(key, "fsdp_");
  if (parent == "dynamo_config") key = absl::StripPrefix(key, "dynamo_");
  if (parent == "fp8_config") key = absl::StripPrefix(key, "fp8_");
  return parent.empty() ? std::string(key) : absl::StrCat(parent, ".", key);
}

bool IsOneOf(absl::string_view word, absl::string_view words) {
  if (words.empty()) return false;
  const std::vector<absl::string_view> choices = absl::StrSplit(words, '|');
  return std::any_of(choices.begin(), choices.end(),
                     [&](absl::string_view choice) { return absl::EqualsIgnoreCase(choice, word); });
}

}  // namespace trainyard::foreign
