// What each key of a configuration file of another program becomes. The rules are data: one row for each key, in the
// tables of this folder, and every key that is not in a table is an error.
//
//   const KeyRule* rule = FindRule(Dialect::kDeepSpeed, "zero_optimization.stage");   // sets parallel.data
//
// Pure; the tables are constants. The names, types and defaults of the keys are those of Accelerate 1.15, DeepSpeed
// 0.19 and transformers 5.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace trainyard::foreign {

enum class Dialect {
  kAccelerate,         // the YAML file of `accelerate config`
  kDeepSpeed,          // the JSON file of DeepSpeed
  kTrainingArguments,  // the JSON form of transformers' TrainingArguments
  kFsdpConfig,         // the JSON file that TrainingArguments' fsdp_config names
};

// "DeepSpeed", for messages.
absl::string_view DialectName(Dialect dialect);

enum class Form { kFlag, kWhole, kNumber, kText, kList, kMap, kOpaque };

enum class Effect {
  kSets,    // sets keys of the job
  kNone,    // changes nothing that the job could express, and the note says why
  kRefused  // asks for something that Trainyard does not have; the note says what to do
};

struct KeyRule {
  absl::string_view key;  // dotted; keys in fsdp_config, dynamo_config and fp8_config without the prefix of their names
  Form form = Form::kText;  // kMap: its keys have rules of their own; kOpaque: they have none
  Effect effect = Effect::kNone;
  absl::string_view target = "";  // kSets: the keys of the job that it sets, separated by blanks
  absl::string_view note = "";    // a sentence or clause for people
  // kNone and kRefused: the values, separated by |, that change nothing. Other values cause an error (kRefused), or a
  // warning (kNone, unless this is empty).
  absl::string_view inert = "";
  absl::string_view words = "";  // the values that a text may have, separated by |; empty: any
  bool may_be_auto = false;
};

// Functions that make the rows of the tables.
constexpr KeyRule Sets(absl::string_view key, Form form, absl::string_view target, absl::string_view note = "",
                       absl::string_view words = "") {
  return {.key = key, .form = form, .effect = Effect::kSets, .target = target, .note = note, .words = words};
}
constexpr KeyRule None(absl::string_view key, Form form, absl::string_view note, absl::string_view inert = "") {
  return {.key = key, .form = form, .effect = Effect::kNone, .note = note, .inert = inert};
}
constexpr KeyRule Refused(absl::string_view key, Form form, absl::string_view note, absl::string_view inert) {
  return {.key = key, .form = form, .effect = Effect::kRefused, .note = note, .inert = inert};
}
constexpr KeyRule Block(absl::string_view key) { return {.key = key, .form = Form::kMap, .note = "a group of keys"}; }
// The same row for a key that may be "auto".
constexpr KeyRule Auto(KeyRule rule) {
  rule.may_be_auto = true;
  return rule;
}

// accelerate_rules.cc, block_rules.cc, fsdp_rules.cc, deepspeed_rules.cc, zero_rules.cc, trainer_rules.cc
absl::Span<const KeyRule> AccelerateRules();
absl::Span<const KeyRule> AccelerateBlockRules();
absl::Span<const KeyRule> FsdpRules();
absl::Span<const KeyRule> DeepSpeedRules();
absl::Span<const KeyRule> ZeroRules();
absl::Span<const KeyRule> TrainerRules();

// The rules of a dialect, sorted by key.
const std::vector<const KeyRule*>& RulesOf(Dialect dialect);

// The rule of a key, or null.
const KeyRule* FindRule(Dialect dialect, absl::string_view key);

// The keys directly in the group `parent` ("": at the top), without the group's name.
std::vector<std::string> KeysIn(Dialect dialect, absl::string_view parent);

// The key as the tables have it: without fsdp_ in fsdp_config, dynamo_ in dynamo_config, fp8_ in fp8_config.
std::string CanonicalKey(absl::string_view parent, absl::string_view key);

// Whether `word` is one of the alternatives in `words` ("a|b"), without regard to case.
bool IsOneOf(absl::string_view word, absl::string_view words);

}  // namespace trainyard::foreign
