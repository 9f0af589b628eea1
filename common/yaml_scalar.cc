// SetScalar of yaml_schema.h: sets one field from one scalar, according to its type.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/nearest_name.h"
#include "common/plain_text.h"
#include "common/strict_yaml.h"
#include "common/user_path.h"
#include "common/yaml_schema.h"

namespace trainyard::yaml {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

bool IsDigits(absl::string_view text) {
  if (text.empty()) return false;
  for (char c : text) {
    if (!absl::ascii_isdigit(c)) return false;
  }
  return true;
}

std::string QuotedText(const Scalar& scalar) {
  constexpr size_t kQuotedBytesMax = 60;
  std::string text =
      scalar.text.size() > kQuotedBytesMax ? absl::StrCat(scalar.text.substr(0, kQuotedBytesMax), "...") : scalar.text;
  return !scalar.quoted && IsNumber(scalar.text) ? text : absl::StrCat("'", text, "'");
}

std::string Mismatch(const Scalar& scalar, const FieldDescriptor& field) {
  std::string range = RangeSentence(field);
  bool is_number = !scalar.quoted && IsNumber(scalar.text);
  if (is_number && !range.empty()) return absl::StrCat(range, ", found ", QuotedText(scalar));
  return absl::StrCat("expected ", Expectation(field), ", found ", scalar.quoted ? "the string " : "",
                      QuotedText(scalar));
}

bool ParseDouble(absl::string_view text, double* value) {
  absl::string_view digits = absl::StripPrefix(text, "+");
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *value);
  return error == std::errc() && end == digits.data() + digits.size() && std::isfinite(*value);
}

// YAML 1.1 reads 010 as 8. Numbers on which readers disagree are rejected.
bool HasLeadingZero(const Scalar& scalar) {
  absl::string_view digits = scalar.text;
  if (!absl::ConsumePrefix(&digits, "-")) absl::ConsumePrefix(&digits, "+");
  return !scalar.quoted && digits.size() > 1 && digits[0] == '0' && absl::ascii_isdigit(digits[1]);
}

std::string LeadingZero(const Scalar& scalar) {
  return absl::StrCat("begins with a 0, which some YAML readers treat as octal; write the number without it, found ",
                      QuotedText(scalar));
}

// A whole number with a separate sign, so that one function serves signed and unsigned fields. `1e3` and `100.0` are
// whole numbers.
bool ParseWhole(absl::string_view text, bool* negative, uint64_t* magnitude) {
  absl::string_view digits = text;
  *negative = absl::ConsumePrefix(&digits, "-");
  if (!*negative) absl::ConsumePrefix(&digits, "+");
  if (IsDigits(digits)) {
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *magnitude);
    return error == std::errc() && end == digits.data() + digits.size();
  }
  double value = 0;
  constexpr double kExact = 9007199254740992;  // 2^53: a double represents all whole numbers up to here
  if (!IsNumber(digits) || !ParseDouble(digits, &value)) return false;
  if (value != std::floor(value) || value > kExact) return false;
  *magnitude = static_cast<uint64_t>(value);
  return true;
}

// The text of the scalar, or the number that `true` or `false` means if the rule of the field defines it. `digits` owns
// that number.
const std::string* AsNumber(const Scalar& scalar, const FieldDescriptor& field, std::string* digits) {
  const v1::FieldRule& rule = RuleOf(field);
  if (scalar.quoted) return &scalar.text;
  if (scalar.text == "true" && rule.has_true_value()) *digits = absl::StrCat(rule.true_value());
  if (scalar.text == "false" && rule.has_false_value()) *digits = absl::StrCat(rule.false_value());
  return digits->empty() ? &scalar.text : digits;
}

std::string SetWhole(const Scalar& scalar, const FieldDescriptor& field, Message* message) {
  bool negative = false;
  uint64_t magnitude = 0;
  std::string digits;
  const std::string& text = *AsNumber(scalar, field, &digits);
  if (scalar.quoted || !IsNumber(text)) return Mismatch(scalar, field);
  if (HasLeadingZero(scalar)) return LeadingZero(scalar);
  if (!ParseWhole(text, &negative, &magnitude)) {
    double value = 0;
    if (ParseDouble(scalar.text, &value) && value != std::floor(value)) {
      return absl::StrCat("expected ", Expectation(field), ", found ", QuotedText(scalar));
    }
    return Mismatch(scalar, field);
  }
  double value = negative ? -static_cast<double>(magnitude) : static_cast<double>(magnitude);
  if (!InRange(field, value)) return Mismatch(scalar, field);
  const v1::FieldRule& rule = RuleOf(field);
  // The number that `true` or `false` means may be below the minimum. Then only the word is accepted, not the number.
  if (digits.empty() && rule.has_true_value() && rule.has_min() && value < rule.min()) return Mismatch(scalar, field);
  const auto* reflection = message->GetReflection();
  const bool is_unsigned =
      field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32 || field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64;
  const bool is_wide =
      field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64 || field.cpp_type() == FieldDescriptor::CPPTYPE_INT64;
  uint64_t max = is_wide ? (is_unsigned ? UINT64_MAX : INT64_MAX) : (is_unsigned ? UINT32_MAX : INT32_MAX);
  if (magnitude > max || (negative && is_unsigned && magnitude > 0)) {
    return absl::StrCat("must be from ", is_unsigned ? "0" : absl::StrCat("-", max), " to ", max, ", found ",
                        QuotedText(scalar));
  }
  int64_t with_sign = negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
  const bool add = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      add ? reflection->AddUInt32(message, &field, static_cast<uint32_t>(magnitude))
          : reflection->SetUInt32(message, &field, static_cast<uint32_t>(magnitude));
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      add ? reflection->AddUInt64(message, &field, magnitude) : reflection->SetUInt64(message, &field, magnitude);
      break;
    case FieldDescriptor::CPPTYPE_INT32:
      add ? reflection->AddInt32(message, &field, static_cast<int32_t>(with_sign))
          : reflection->SetInt32(message, &field, static_cast<int32_t>(with_sign));
      break;
    default:
      add ? reflection->AddInt64(message, &field, with_sign) : reflection->SetInt64(message, &field, with_sign);
  }
  return "";
}

std::string SetFloatingPoint(const Scalar& scalar, const FieldDescriptor& field, Message* message) {
  double value = 0;
  if (HasLeadingZero(scalar) && IsNumber(scalar.text)) return LeadingZero(scalar);
  if (scalar.quoted || !IsNumber(scalar.text) || !ParseDouble(scalar.text, &value) || !InRange(field, value)) {
    return Mismatch(scalar, field);
  }
  const auto* reflection = message->GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) {
    field.is_repeated() ? reflection->AddFloat(message, &field, static_cast<float>(value))
                        : reflection->SetFloat(message, &field, static_cast<float>(value));
  } else {
    field.is_repeated() ? reflection->AddDouble(message, &field, value) : reflection->SetDouble(message, &field, value);
  }
  return "";
}

std::string FolderProblem(const Scalar& scalar) {
  const bool home = scalar.text[0] == '~';
  return absl::StrCat("is a path within the ", home ? "home" : "working", " folder, whose name ",
                      WhyNotPlainText(home ? HomeFolder() : scalar.working_directory), "; write an absolute path",
                      home ? "" : ", or start the program in another folder");
}

std::string SetText(const Scalar& scalar, const FieldDescriptor& field, Message* message) {
  if (!scalar.quoted && (IsNumber(scalar.text) || scalar.text == "true" || scalar.text == "false")) {
    return absl::StrCat("expected ", Expectation(field), ", found ", scalar.text,
                        "; put it in quotes if it is a string");
  }
  std::string text = scalar.text;
  if (RuleOf(field).path()) {
    auto path = PathOfUser(text, scalar.working_directory);
    if (!path.ok()) return std::string(path.status().message());
    // Without this test CheckRules would blame the value for a problem with the name of the working directory.
    if (WhyNotPlainText(text).empty() && !WhyNotPlainText(*path).empty()) return FolderProblem(scalar);
    text = *std::move(path);
  }
  if (text[0] == '/' || !RuleOf(field).path()) {
    if (std::string problem = TextProblem(field, text); !problem.empty()) return problem;
  }
  const auto* reflection = message->GetReflection();
  field.is_repeated() ? reflection->AddString(message, &field, text) : reflection->SetString(message, &field, text);
  return "";
}

std::string SetEnum(const Scalar& scalar, const FieldDescriptor& field, Message* message) {
  const auto& type = *field.enum_type();
  for (int i = 0; i < type.value_count(); ++i) {
    const EnumValueDescriptor& value = *type.value(i);
    if (value.number() == 0 || EnumName(value) != scalar.text) continue;
    const auto* reflection = message->GetReflection();
    field.is_repeated() ? reflection->AddEnum(message, &field, &value) : reflection->SetEnum(message, &field, &value);
    return "";
  }
  std::vector<std::string> names = EnumNames(type);
  // If every name is a letter and a number, such as h100, a similar one such as b200 is another thing, not a mistake.
  const bool are_numbered = std::all_of(names.begin(), names.end(), [](const std::string& name) {
    return name.size() > 1 && IsDigits(absl::string_view(name).substr(1));
  });
  if (RuleOf(field).auto_()) names.push_back("auto");
  std::string nearest = NearestName(scalar.text, names);
  if (are_numbered && !absl::EqualsIgnoreCase(nearest, scalar.text)) nearest.clear();
  return absl::StrCat("expected ", Expectation(field), ", found ", QuotedText(scalar),
                      nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?"));
}

std::string SetBool(const Scalar& scalar, const FieldDescriptor& field, Message* message) {
  if (scalar.quoted || (scalar.text != "true" && scalar.text != "false")) return Mismatch(scalar, field);
  const auto* reflection = message->GetReflection();
  const bool value = scalar.text == "true";
  field.is_repeated() ? reflection->AddBool(message, &field, value) : reflection->SetBool(message, &field, value);
  return "";
}

}  // namespace

// [-+]? ( digits [. digits?]? | . digits ) ( [eE] [-+]? digits )?
bool IsNumber(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, "-")) absl::ConsumePrefix(&text, "+");
  size_t digits = 0;
  auto take_digits = [&] {
    size_t n = 0;
    while (n < text.size() && absl::ascii_isdigit(text[n])) ++n;
    text.remove_prefix(n);
    return n;
  };
  digits = take_digits();
  if (absl::ConsumePrefix(&text, ".")) digits += take_digits();
  if (digits == 0) return false;
  if (absl::ConsumePrefix(&text, "e") || absl::ConsumePrefix(&text, "E")) {
    if (!absl::ConsumePrefix(&text, "-")) absl::ConsumePrefix(&text, "+");
    if (take_digits() == 0) return false;
  }
  return text.empty();
}

std::string SetScalar(const Scalar& scalar, const FieldDescriptor& field, Message* message) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return SetText(scalar, field, message);
    case FieldDescriptor::CPPTYPE_ENUM:
      return SetEnum(scalar, field, message);
    case FieldDescriptor::CPPTYPE_BOOL:
      return SetBool(scalar, field, message);
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return SetFloatingPoint(scalar, field, message);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return absl::StrCat("expected ", Expectation(field), ", found ", QuotedText(scalar));
    default:
      return SetWhole(scalar, field, message);
  }
}

}  // namespace trainyard::yaml
