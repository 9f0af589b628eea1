#include "foreign/document.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/escape.h"
#include "common/nearest_name.h"
#include "common/yaml_schema.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::foreign {
namespace {

constexpr size_t kValueBytesMax = 80;  // of a value in a message
constexpr double kWholeMax = 1e19;

absl::optional<bool> FlagOf(absl::string_view text) {
  if (IsOneOf(text, "true|yes|on|y")) return true;
  if (IsOneOf(text, "false|no|off|n")) return false;
  return absl::nullopt;
}

absl::optional<double> NumberOf(const std::string& text) {
  double number = 0;
  const bool is_decimal = !text.empty() && text.find_first_not_of("0123456789+-.eE") == std::string::npos;
  if (!is_decimal || !absl::SimpleAtod(text, &number) || !std::isfinite(number)) return absl::nullopt;
  return number;
}

std::string TextOf(const yaml::Node& node) {
  if (node.IsMap()) return node.entries.empty() ? "{}" : "{...}";
  if (node.IsList()) {
    return absl::StrCat("[",
                        absl::StrJoin(node.items, ", ",
                                      [](std::string* out, const yaml::NodePtr& item) {
                                        absl::StrAppend(out, item->IsScalar() ? item->text : "...");
                                      }),
                        "]");
  }
  return node.IsNothing() ? "null" : node.text;
}

std::string Shown(const yaml::Node& node) { return EscapeText(TextOf(node).substr(0, kValueBytesMax)); }

absl::string_view FormText(Form form) {
  switch (form) {
    case Form::kFlag:
      return "true or false";
    case Form::kWhole:
      return "a whole number";
    case Form::kNumber:
      return "a number";
    case Form::kText:
      return "a text";
    case Form::kList:
      return "a list";
    case Form::kMap:
      return "a map";
    case Form::kOpaque:
      break;
  }
  return "a value";
}

// Whether the value turns a group of DeepSpeed off: it is false, null or an empty map, or has `enabled: false`.
bool IsOff(const yaml::Node& node) {
  if (!node.IsMap()) return node.IsNothing() || (node.IsScalar() && FlagOf(node.text) == false);
  for (const auto& [key, value] : node.entries) {
    if (key->text == "enabled") return value->IsScalar() && FlagOf(value->text) == false;
  }
  return node.entries.empty();
}

class Reader {
 public:
  Reader(Dialect dialect, const std::string& file_name, Problems* problems)
      : dialect_(dialect), file_name_(file_name), problems_(*problems) {}

  void ReadMap(const yaml::Node& map, const std::string& parent, const std::string& shown_parent) {
    std::set<std::string> seen;
    for (const auto& [key, value] : map.entries) {
      const std::string canonical = CanonicalKey(parent, key->text);
      const std::string shown =
          EscapeText(shown_parent.empty() ? key->text : absl::StrCat(shown_parent, ".", key->text));
      if (!seen.insert(canonical).second) {
        Error(*key, shown, "is given twice; remove one of the two");
        continue;
      }
      const KeyRule* rule = FindRule(dialect_, canonical);
      if (rule == nullptr) {
        ReportUnknown(*key, parent, shown_parent);
      } else {
        ReadValue(*rule, *key, *value, shown);
      }
    }
  }

  Reading Take() { return std::move(reading_); }

 private:
  void Error(const yaml::Node& at, const std::string& key, const std::string& text) {
    problems_.Add({.is_warning = false,
                   .position = {.file = file_name_, .line = at.line, .column = at.column},
                   .path = key,
                   .text = text});
  }

  void ReportUnknown(const yaml::Node& key, const std::string& parent, const std::string& shown_parent) {
    // Only the first problems of a file are shown, so the search for the nearest key is skipped for the others.
    if (problems_.error_count() >= Problems::kMax) return Error(key, "", "unknown key");
    const std::vector<std::string> valid = KeysIn(dialect_, parent);
    const std::string nearest =
        NearestName(CanonicalKey(parent, key.text).substr(parent.empty() ? 0 : parent.size() + 1), valid);
    Error(key, EscapeText(shown_parent),
          absl::StrCat(DialectName(dialect_), " has no key '", EscapeText(key.text.substr(0, kValueBytesMax)), "'",
                       parent.empty() ? "" : " here",
                       nearest.empty() ? "." : absl::StrCat("; did you mean '", nearest, "'?"),
                       " Valid here: ", absl::StrJoin(valid, ", ")));
  }

  void ReadValue(const KeyRule& rule, const yaml::Node& key, const yaml::Node& node, const std::string& shown) {
    Value value{.rule = &rule, .key = shown, .text = Shown(node)};
    if (node.IsScalar()) value.whole = node.text;
    value.position = {.file = file_name_, .line = key.line, .column = key.column};
    value.is_null = node.IsNothing() || (node.IsScalar() && IsOneOf(node.text, "none|null"));
    value.is_auto = node.IsScalar() && node.text == "auto" && (rule.may_be_auto || rule.form != Form::kText);
    value.is_path = node.IsScalar() && rule.key == "fsdp_config" && dialect_ == Dialect::kTrainingArguments;
    value.is_off = IsOff(node);
    if (!value.is_null && !value.is_auto && !value.is_path && !SetForm(rule, node, &value)) {
      const std::string words = absl::StrReplaceAll(rule.words, {{"|", ", "}});
      Error(key, shown,
            absl::StrCat("expected ", words.empty() ? std::string(FormText(rule.form)) : absl::StrCat("one of ", words),
                         rule.may_be_auto ? " or auto" : "", ", found ", value.text));
      return;
    }
    if (value.is_auto && !rule.may_be_auto && rule.form != Form::kOpaque) {
      Error(key, shown, absl::StrCat("expected ", FormText(rule.form), ", found auto, which this key cannot be"));
      return;
    }
    reading_.values.push_back(std::move(value));
    const bool is_group = node.IsMap() && rule.form != Form::kOpaque;
    if (is_group) ReadMap(node, std::string(rule.key), shown);
  }

  static bool SetForm(const KeyRule& rule, const yaml::Node& node, Value* value) {
    switch (rule.form) {
      case Form::kOpaque:
        return true;
      case Form::kMap:
        return node.IsMap();
      case Form::kFlag:
        if (node.IsScalar()) value->flag = FlagOf(node.text);
        return value->flag.has_value();
      case Form::kWhole:
      case Form::kNumber:
        if (node.IsScalar()) value->number = NumberOf(node.text);
        if (!value->number.has_value()) return false;
        return rule.form == Form::kNumber ||
               (std::floor(*value->number) == *value->number && std::fabs(*value->number) <= kWholeMax);
      case Form::kText:
        if (!node.IsScalar()) return false;
        value->flag = FlagOf(node.text);
        // Python programs read an unquoted `no` as false (YAML 1.1), and PyYAML writes the word with quotes. So a false
        // value is accepted for the word `no`.
        return rule.words.empty() || IsOneOf(node.text, rule.words) ||
               (value->flag == false && IsOneOf("no", rule.words));
      case Form::kList:
        break;
    }
    if (node.IsScalar()) value->items = absl::StrSplit(node.text, absl::ByAnyChar(", "), absl::SkipEmpty());
    if (node.IsList()) {
      for (const yaml::NodePtr& item : node.items) {
        if (!item->IsScalar()) return false;
        value->items.push_back(item->text);
      }
    }
    return node.IsScalar() || node.IsList();
  }

  const Dialect dialect_;
  const std::string file_name_;
  Problems& problems_;
  Reading reading_;
};

int CountKnown(const yaml::Node& root, Dialect dialect) {
  const std::string parent = dialect == Dialect::kFsdpConfig ? "fsdp_config" : "";
  int count = 0;
  for (const auto& [key, value] : root.entries) {
    const KeyRule* rule = FindRule(dialect, CanonicalKey(parent, key->text));
    // A key counts only if it is a group exactly where the rule wants one: fp16 is a group in DeepSpeed's files, but a
    // flag in two other dialects.
    if (rule != nullptr && (rule->form == Form::kOpaque || (rule->form == Form::kMap) == value->IsMap())) ++count;
  }
  return count;
}

int CountJobKeys(const yaml::Node& root) {
  int count = 0;
  for (const auto& [key, value] : root.entries) {
    if (yaml::FieldOfKey(*v1::JobSpec::descriptor(), key->text) != nullptr) ++count;
  }
  return count;
}

// Replaces the tabs between the tokens of a JSON text by blanks, because YAML forbids tabs there.
std::string WithoutTabs(absl::string_view text) {
  std::string out(text);
  bool in_string = false;
  for (size_t i = 0; i < out.size(); ++i) {
    if (in_string && out[i] == '\\') {
      ++i;
    } else if (out[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && out[i] == '\t') {
      out[i] = ' ';
    }
  }
  return out;
}

}  // namespace

bool Value::IsInert() const {
  if (is_null || (rule->form == Form::kOpaque && is_off)) return true;
  if (flag == true && IsOneOf("true", rule->inert)) return true;
  if (flag == false && (IsOneOf("false", rule->inert) || IsOneOf("no", rule->inert))) return true;
  return IsOneOf(text, rule->inert);
}

const Value* Reading::Find(absl::string_view canonical_key) const {
  for (const Value& value : values) {
    if (value.rule->key == canonical_key && !value.is_null) return &value;
  }
  return nullptr;
}

yaml::NodePtr ParseDocument(absl::string_view text, const std::string& file_name, Problems* problems) {
  const bool is_json = absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "{");
  yaml::ParseError error;
  yaml::NodePtr root = yaml::Parse(is_json ? WithoutTabs(text) : std::string(text), &error);
  if (root == nullptr) {
    problems->Add({.is_warning = false,
                   .position = {.file = file_name, .line = error.line, .column = error.column},
                   .path = "",
                   .text = error.text});
  }
  return root;
}

absl::optional<Dialect> DetectDialect(const yaml::Node& root) {
  absl::optional<Dialect> best;
  int most = CountJobKeys(root);
  for (Dialect dialect :
       {Dialect::kAccelerate, Dialect::kDeepSpeed, Dialect::kTrainingArguments, Dialect::kFsdpConfig}) {
    const int known = CountKnown(root, dialect);
    if (known <= most) continue;
    most = known;
    best = dialect;
  }
  return best;
}

bool HasJobKeys(const yaml::Node& root) { return CountJobKeys(root) > 0; }

Reading ReadKeys(const yaml::Node& root, Dialect dialect, const std::string& file_name, Problems* problems) {
  Reader reader(dialect, file_name, problems);
  reader.ReadMap(root, dialect == Dialect::kFsdpConfig ? "fsdp_config" : "", "");
  return reader.Take();
}

}  // namespace trainyard::foreign
