// WriteYaml and FieldYaml of strict_yaml.h.
#include <charconv>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/strict_yaml.h"
#include "common/yaml_schema.h"

namespace trainyard {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string DoubleText(double value) {
  char buffer[64];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

// Writes a string without quotes if every YAML reader reads it as that string, otherwise in double quotes. Readers of
// YAML 1.1 read Yes and OFF as booleans, and some of them also y.
std::string TextYaml(const std::string& text) {
  bool plain = !text.empty() && !yaml::IsNumber(text);
  for (char c : text)
    plain = plain && (absl::ascii_isalnum(c) || c == '/' || c == '.' || c == '_' || c == '-' || c == '+');
  if (plain && (text[0] == '-' || text[0] == '.' || text[0] == '+' || absl::ascii_isdigit(text[0]))) plain = false;
  for (const char* keyword : {"true", "false", "null", "auto", "yes", "no", "on", "off", "y", "n"}) {
    plain = plain && !absl::EqualsIgnoreCase(text, keyword);
  }
  if (plain) return text;
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", std::string(1, c));
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(&quoted, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

// A whole number as `true` or `false` if its rule says so, otherwise its digits.
std::string WholeYaml(uint64_t value, const FieldDescriptor& field) {
  const v1::FieldRule& rule = yaml::RuleOf(field);
  if (rule.has_true_value() && value == rule.true_value()) return "true";
  if (rule.has_false_value() && value == rule.false_value()) return "false";
  return absl::StrCat(value);
}

// Element `i` of a repeated field, or the field itself.
std::string ElementYaml(const Message& message, const FieldDescriptor& field, int i) {
  const auto& r = *message.GetReflection();
  const bool list = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return WholeYaml(list ? r.GetRepeatedUInt32(message, &field, i) : r.GetUInt32(message, &field), field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return WholeYaml(list ? r.GetRepeatedUInt64(message, &field, i) : r.GetUInt64(message, &field), field);
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(list ? r.GetRepeatedInt32(message, &field, i) : r.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(list ? r.GetRepeatedInt64(message, &field, i) : r.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return DoubleText(list ? r.GetRepeatedDouble(message, &field, i) : r.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return DoubleText(list ? r.GetRepeatedFloat(message, &field, i) : r.GetFloat(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return (list ? r.GetRepeatedBool(message, &field, i) : r.GetBool(message, &field)) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto* value = list ? r.GetRepeatedEnum(message, &field, i) : r.GetEnum(message, &field);
      return EnumName(*value);
    }
    default: {
      std::string scratch;
      return TextYaml(list ? r.GetRepeatedStringReference(message, &field, i, &scratch)
                           : r.GetStringReference(message, &field, &scratch));
    }
  }
}

void WriteMap(const Message& message, int indent, std::string* out) {
  const auto& descriptor = *message.GetDescriptor();
  const auto& reflection = *message.GetReflection();
  const std::string margin(static_cast<size_t>(indent), ' ');
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    const bool set =
        field.is_repeated() ? reflection.FieldSize(message, &field) > 0 : reflection.HasField(message, &field);
    if (!set) continue;
    if (field.message_type() == nullptr) {
      absl::StrAppend(out, margin, yaml::KeyOf(field), ": ", FieldYaml(message, field), "\n");
      continue;
    }
    std::string inner;
    WriteMap(reflection.GetMessage(message, &field), indent + 2, &inner);
    if (!inner.empty()) absl::StrAppend(out, margin, yaml::KeyOf(field), ":\n", inner);
  }
}

}  // namespace

std::string FieldYaml(const Message& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  if (!field.is_repeated()) {
    if (!reflection.HasField(message, &field) && yaml::RuleOf(field).auto_()) return "auto";
    return ElementYaml(message, field, 0);
  }
  std::string list = "[";
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    absl::StrAppend(&list, i > 0 ? ", " : "", ElementYaml(message, field, i));
  }
  return list + "]";
}

std::string WriteYaml(const Message& message) {
  std::string out;
  WriteMap(message, 0, &out);
  return out;
}

}  // namespace trainyard
