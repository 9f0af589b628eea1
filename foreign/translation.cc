#include "foreign/translation.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/plural.h"
#include "common/strict_yaml.h"
#include "common/yaml_schema.h"

namespace trainyard::foreign {
namespace {

// The value in YAML of a scalar or list at a dotted path of keys; empty if it is not set.
std::string YamlAt(const google::protobuf::Message& root, absl::string_view path) {
  const google::protobuf::Message* message = &root;
  const std::vector<absl::string_view> keys = absl::StrSplit(path, '.');
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto* field = yaml::FieldOfKey(*message->GetDescriptor(), keys[i]);
    if (field == nullptr) return "";
    if (i + 1 < keys.size()) {
      if (field->message_type() == nullptr) return "";
      message = &message->GetReflection()->GetMessage(*message, field);
    } else if (field->is_repeated() ? message->GetReflection()->FieldSize(*message, field) > 0
                                    : message->GetReflection()->HasField(*message, field)) {
      return field->message_type() == nullptr ? FieldYaml(*message, *field) : "";
    }
  }
  return "";
}

}  // namespace

bool SameYaml(absl::string_view a, absl::string_view b) {
  double x = 0, y = 0;
  if (absl::SimpleAtod(a, &x) && absl::SimpleAtod(b, &y)) return x == y;
  return absl::EqualsIgnoreCase(absl::StrReplaceAll(a, {{" ", ""}}), absl::StrReplaceAll(b, {{" ", ""}}));
}

std::string ProductText(uint64_t micro, uint64_t accumulation, uint64_t data_ranks) {
  return absl::StrCat(micro * accumulation * data_ranks, " = micro ", micro, " x accumulation ", accumulation, " x ",
                      Plural(data_ranks, "data rank"));
}

void Translation::AddReading(const Reading& reading) {
  for (const Value& value : reading.values) {
    reading_.values.push_back(value);
    outcomes_.push_back({.key = value.key,
                         .value = value.text,
                         .position = value.position,
                         .effect = value.rule->effect,
                         .note = std::string(value.rule->note)});
    refused_.push_back(false);
    Judge(value);
  }
}

// Applies the rules of keys that set nothing.
void Translation::Judge(const Value& value) {
  const KeyRule& rule = *value.rule;
  const std::string note(rule.note);
  if (value.is_null) {
    if (rule.effect != Effect::kNone) outcomes_.back().note = "the value changes nothing";
    outcomes_.back().effect = Effect::kNone;
  } else if (rule.effect == Effect::kRefused && value.IsInert()) {
    outcomes_.back().effect = Effect::kNone;
    outcomes_.back().note = "the value changes nothing";
  } else if (rule.effect == Effect::kRefused) {
    refused_.back() = true;
    problems_.Add({.is_warning = false,
                   .position = value.position,
                   .path = value.key,
                   .text = absl::StrCat(value.text, " is not available: ", note)});
  } else if (rule.effect == Effect::kNone && !rule.inert.empty() && !value.IsInert()) {
    Warn(value, absl::StrCat(value.text, " has no effect: ", note));
  }
}

KeyOutcome& Translation::OutcomeOf(const Value& value) {
  for (size_t i = 0; i < reading_.values.size(); ++i) {
    const Value& each = reading_.values[i];
    if (each.key == value.key && each.position.file == value.position.file) return outcomes_[i];
  }
  return outcomes_.emplace_back();  // never reached: each value comes from reading_
}

const Value* Translation::Find(absl::string_view canonical_key) const {
  for (size_t i = 0; i < reading_.values.size(); ++i) {
    const Value& value = reading_.values[i];
    if (value.rule->key == canonical_key && !value.is_null && !refused_[i]) return &value;
  }
  return nullptr;
}

const Value* Translation::FindFixed(absl::string_view canonical_key) const {
  const Value* value = Find(canonical_key);
  return value != nullptr && !value->is_auto ? value : nullptr;
}

absl::optional<bool> Translation::Flag(absl::string_view canonical_key) const {
  const Value* value = Find(canonical_key);
  return value == nullptr ? absl::nullopt : value->flag;
}

absl::optional<double> Translation::Number(absl::string_view canonical_key) const {
  const Value* value = Find(canonical_key);
  return value == nullptr ? absl::nullopt : value->number;
}

void Translation::Set(const Value& from, absl::string_view key, absl::string_view yaml) {
  KeyOutcome& outcome = OutcomeOf(from);
  const bool is_repeated = std::any_of(outcome.settings.begin(), outcome.settings.end(),
                                       [&](const Setting& each) { return each.key == key && each.value == yaml; });
  if (!is_repeated) outcome.settings.push_back({std::string(key), std::string(yaml)});
  if (outcome.effect == Effect::kNone) outcome.effect = Effect::kSets;
  outcome.is_settled = true;
  const auto [at, is_new] =
      assigned_.insert({std::string(key), {.value = std::string(yaml), .position = from.position, .from = from.key}});
  if (!is_new && !SameYaml(at->second.value, yaml)) {
    if (HasFlag(key)) return;  // --set replaces both
    Error(from, absl::StrCat("asks for ", key, ": ", yaml, ", but ", at->second.from, " asks for ", at->second.value,
                             "; give one of the two, or --set ", key, "=VALUE"));
    return;
  }
  if (!is_new || !HasFlag(key)) return;
  const std::string given = YamlAt(flags_, key);
  if (given.empty() || SameYaml(given, yaml)) return;
  notes_.push_back(absl::StrCat("--set ", key, "=", given, " replaces ", yaml, ", which ", from.key, " asks for"));
  Explain(from, absl::StrCat("--set ", key, "=", given, " replaces it"));
}

void Translation::SetDefault(const Value& from, absl::string_view key, absl::string_view yaml, absl::string_view why) {
  if (HasFlag(key) || assigned_.count(std::string(key)) > 0) return;
  assigned_.insert({std::string(key), {.value = std::string(yaml), .position = from.position, .from = from.key}});
  OutcomeOf(from).settings.push_back({std::string(key), std::string(yaml)});
  notes_.push_back(absl::StrCat(key, " is ", yaml, ": ", why));
}

void Translation::Explain(const Value& from, absl::string_view text) {
  KeyOutcome& outcome = OutcomeOf(from);
  outcome.note = std::string(text);
  outcome.is_settled = true;
}

void Translation::Announce(const Value& from, absl::string_view text) {
  Explain(from, text);
  notes_.push_back(absl::StrCat(from.key, ": ", text));
}

void Translation::Warn(const Value& from, absl::string_view text) {
  Explain(from, text);
  problems_.Add({.is_warning = true, .position = from.position, .path = from.key, .text = std::string(text)});
}

void Translation::Error(const Value& from, absl::string_view text) {
  KeyOutcome& outcome = OutcomeOf(from);
  outcome.effect = Effect::kRefused;
  outcome.note = std::string(text);
  problems_.Add({.is_warning = false, .position = from.position, .path = from.key, .text = std::string(text)});
}

std::string Translation::FamilyOfModel() const {
  const std::string family = YamlAt(flags_, "train.model.family");
  return family.empty() ? "gpt2" : family;
}

std::string Translation::ValueOf(absl::string_view key) const {
  return HasFlag(key) ? YamlAt(flags_, key) : FileValueOf(key);
}

std::string Translation::FileValueOf(absl::string_view key) const {
  const auto at = assigned_.find(std::string(key));
  return at == assigned_.end() ? "" : at->second.value;
}

void Translation::Finish() {
  for (size_t i = 0; i < outcomes_.size(); ++i) {
    KeyOutcome& outcome = outcomes_[i];
    if (outcome.effect != Effect::kSets || !outcome.settings.empty()) continue;
    outcome.effect = Effect::kNone;
    const Value& value = reading_.values[i];
    if (outcome.is_settled || value.rule->form == Form::kMap) continue;
    if (problems_.ok()) {
      Warn(value, "has no effect in this file, because the keys that it belongs to are not in use");
    } else {
      Explain(value, "not decided, because of the errors in the file");
    }
  }
}

}  // namespace trainyard::foreign
