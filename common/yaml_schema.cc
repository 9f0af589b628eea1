#include "common/yaml_schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/nearest_name.h"
#include "common/strict_yaml.h"

namespace trainyard {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;

std::string EnumName(const EnumValueDescriptor& value) {
  const std::string& own = value.options().GetExtension(v1::word).yaml();
  if (!own.empty()) return own;
  // LogFormat's values start with LOG_FORMAT_.
  std::string prefix;
  const std::string& type = value.type()->name();
  for (size_t i = 0; i < type.size(); ++i) {
    if (i > 0 && absl::ascii_isupper(type[i])) prefix += '_';
    prefix += absl::ascii_toupper(type[i]);
  }
  return absl::AsciiStrToLower(absl::StripPrefix(value.name(), absl::StrCat(prefix, "_")));
}

namespace yaml {
namespace {

// Dotted paths below `message` that end in `key`.
void FindKey(const Descriptor& message, absl::string_view key, const std::string& path,
             std::vector<std::string>* found) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    std::string at = JoinKeys(path, KeyOf(field));
    if (KeyOf(field) == key) found->push_back(at);
    if (field.message_type() != nullptr) FindKey(*field.message_type(), key, at, found);
  }
}

bool IsFloat(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE || field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT;
}

std::string Range(const v1::FieldRule& rule) {
  if (rule.has_min() && rule.has_max()) {
    if (rule.above_min())
      return absl::StrCat("above ", NumberText(rule.min()), " and at most ", NumberText(rule.max()));
    return absl::StrCat("from ", NumberText(rule.min()), " to ", NumberText(rule.max()));
  }
  if (rule.has_min()) return absl::StrCat(rule.above_min() ? "above " : "at least ", NumberText(rule.min()));
  if (rule.has_max()) return absl::StrCat("at most ", NumberText(rule.max()));
  return "";
}

}  // namespace

const v1::FieldRule& RuleOf(const FieldDescriptor& field) { return field.options().GetExtension(v1::rule); }

const std::string& KeyOf(const FieldDescriptor& field) {
  const std::string& key = RuleOf(field).key();
  return key.empty() ? field.name() : key;
}

const FieldDescriptor* FieldOfKey(const Descriptor& message, absl::string_view key) {
  for (int i = 0; i < message.field_count(); ++i) {
    if (KeyOf(*message.field(i)) == key) return message.field(i);
  }
  return nullptr;
}

std::string JoinKeys(absl::string_view parent, absl::string_view key) {
  return parent.empty() ? std::string(key) : absl::StrCat(parent, ".", key);
}

std::string ElementPath(absl::string_view list, int index) { return absl::StrCat(list, "[", index, "]"); }

std::vector<std::string> KeysOf(const Descriptor& message) {
  std::vector<std::string> keys;
  for (int i = 0; i < message.field_count(); ++i) keys.push_back(KeyOf(*message.field(i)));
  return keys;
}

std::vector<std::string> EnumNames(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) names.push_back(EnumName(*type.value(i)));
  }
  return names;
}

std::string NumberText(double value) {
  char buffer[64];
  if (std::abs(value) < 1e15 && value == std::floor(value)) {
    auto end = std::to_chars(buffer, buffer + sizeof buffer, static_cast<int64_t>(value)).ptr;
    return std::string(buffer, end);
  }
  auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return std::string(buffer, end);
}

std::string MapText(const Descriptor& type) {
  return absl::StrCat("a map with the keys ", absl::StrJoin(KeysOf(type), ", "));
}

std::string Expectation(const FieldDescriptor& field) {
  std::string one;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      const std::string& shorthand_key = RuleOf(field).shorthand_key();
      std::string map = MapText(*field.message_type());
      if (field.is_repeated()) return absl::StrCat("a list in which each element is ", map);
      if (shorthand_key.empty()) return map;
      return absl::StrCat(Expectation(*FieldOfKey(*field.message_type(), shorthand_key)), ", or ", map);
    }
    case FieldDescriptor::CPPTYPE_ENUM:
      one = absl::StrJoin(EnumNames(*field.enum_type()), ", ");
      if (field.enum_type()->value_count() > 2) one = absl::StrCat("one of ", one);
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      one = "true or false";
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      one = RuleOf(field).path() ? "a path" : "a string";
      break;
    default:
      one = absl::StrCat(IsFloat(field) ? "a number" : "a whole number", Range(RuleOf(field)).empty() ? "" : " ",
                         Range(RuleOf(field)));
      if (RuleOf(field).has_true_value()) absl::StrAppend(&one, ", true or false");
  }
  const v1::FieldRule& rule = RuleOf(field);
  if (field.is_repeated()) {
    std::string count = rule.has_min_items() && rule.min_items() == rule.max_items()
                            ? absl::StrCat(" of ", rule.min_items())
                            : std::string();
    return absl::StrCat("a list", count, " in which each element is ", one);
  }
  return rule.auto_() ? absl::StrCat(one, " or auto") : one;
}

std::string RangeSentence(const FieldDescriptor& field) {
  std::string range = Range(RuleOf(field));
  return range.empty() ? "" : absl::StrCat("must be ", range);
}

bool InRange(const FieldDescriptor& field, double value) {
  const v1::FieldRule& rule = RuleOf(field);
  if (!std::isfinite(value)) return false;
  if (rule.has_true_value() && value == static_cast<double>(rule.true_value())) return true;
  if (rule.has_false_value() && value == static_cast<double>(rule.false_value())) return true;
  if (rule.has_min() && (rule.above_min() ? !(value > rule.min()) : !(value >= rule.min()))) return false;
  return !rule.has_max() || value <= rule.max();
}

std::string FieldPathOf(const Descriptor& message, absl::string_view keys) {
  std::string path;
  const Descriptor* type = &message;
  for (absl::string_view key : absl::StrSplit(keys, '.', absl::SkipEmpty())) {
    const FieldDescriptor* field = type == nullptr ? nullptr : FieldOfKey(*type, key);
    path = JoinKeys(path, field == nullptr ? key : absl::string_view(field->name()));
    type = field == nullptr ? nullptr : field->message_type();
  }
  return path;
}

bool HasDefaultValue(const google::protobuf::Message& message, const FieldDescriptor& field) {
  const std::string& text = RuleOf(field).default_value();
  if (text.empty()) return false;
  std::unique_ptr<google::protobuf::Message> other(message.New());
  Problems problems;
  SetYamlKey(KeyOf(field), {.text = text, .file_name = "", .working_directory = ""}, other.get(), &problems);
  return FieldYaml(message, field) == FieldYaml(*other, field);
}

std::string UnknownKeyHelp(absl::string_view key, const Descriptor& message, const Descriptor& root, bool lists_keys) {
  std::string help;
  std::string nearest = NearestName(key, KeysOf(message));
  std::vector<std::string> elsewhere;
  FindKey(root, key, "", &elsewhere);
  if (elsewhere.size() > 3) elsewhere.clear();
  if (!elsewhere.empty()) {
    help = absl::StrCat("; it belongs at ", absl::StrJoin(elsewhere, " or "), ".");
  } else if (!nearest.empty()) {
    help = absl::StrCat("; did you mean '", nearest, "'?");
  } else {
    help = ".";
  }
  if (!lists_keys) return help;
  return absl::StrCat(help, " Valid here: ", absl::StrJoin(KeysOf(message), ", "));
}

}  // namespace yaml
}  // namespace trainyard
