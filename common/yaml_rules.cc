// CheckRules, DropInvalid and ApplyDefaults of strict_yaml.h: apply the rules of the schema to a message.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/limits.h"
#include "common/plain_text.h"
#include "common/strict_yaml.h"
#include "common/yaml_schema.h"
#include "google/protobuf/unknown_field_set.h"

namespace trainyard {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Element `i` of a repeated field, or the field itself, as a number. 0 for enums and strings.
double NumberOf(const Message& message, const FieldDescriptor& field, int i) {
  const auto& r = *message.GetReflection();
  const bool list = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return list ? r.GetRepeatedUInt32(message, &field, i) : r.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<double>(list ? r.GetRepeatedUInt64(message, &field, i) : r.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_INT32:
      return list ? r.GetRepeatedInt32(message, &field, i) : r.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(list ? r.GetRepeatedInt64(message, &field, i) : r.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return list ? r.GetRepeatedDouble(message, &field, i) : r.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return list ? r.GetRepeatedFloat(message, &field, i) : r.GetFloat(message, &field);
    default:
      return 0;
  }
}

// Returns the problem of one element; empty if it is valid.
std::string ElementProblem(const Message& message, const FieldDescriptor& field, int i) {
  const auto& r = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "";
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number =
          field.is_repeated() ? r.GetRepeatedEnumValue(message, &field, i) : r.GetEnumValue(message, &field);
      if (number != 0 && field.enum_type()->FindValueByNumber(number) != nullptr) return "";
      return absl::StrCat("expected ", yaml::Expectation(field), ", found the unknown value ", number);
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string scratch;
      return yaml::TextProblem(field, field.is_repeated() ? r.GetRepeatedStringReference(message, &field, i, &scratch)
                                                          : r.GetStringReference(message, &field, &scratch));
    }
    default: {
      const double value = NumberOf(message, field, i);
      if (yaml::InRange(field, value)) return "";
      const std::string range = yaml::RangeSentence(field);
      return absl::StrCat(range.empty() ? "must be a finite number" : range, ", found ", yaml::NumberText(value));
    }
  }
}

// Checks a message and its nested messages. If `drop` is not null, it is the same message, and invalid fields are
// cleared.
class RuleChecker {
 public:
  RuleChecker(const Positions& positions, Problems* problems, std::vector<std::string>* invalid_keys)
      : positions_(positions), problems_(*problems), invalid_keys_(invalid_keys) {}

  void Check(const Message& message, Message* drop, const std::string& path) {
    const auto& descriptor = *message.GetDescriptor();
    const auto& r = *message.GetReflection();
    for (int i = 0; i < descriptor.field_count(); ++i) {
      const FieldDescriptor& field = *descriptor.field(i);
      std::string at = yaml::JoinKeys(path, yaml::KeyOf(field));
      bool is_valid = true;
      if (field.is_repeated()) {
        is_valid = CheckList(message, field, at);
        if (is_valid && field.message_type() != nullptr) CheckElements(message, drop, field, at);
      } else if (!r.HasField(message, &field)) {
        if (yaml::RuleOf(field).required()) Missing(field, at);
      } else if (field.message_type() != nullptr) {
        Check(r.GetMessage(message, &field), drop == nullptr ? nullptr : r.MutableMessage(drop, &field), at);
      } else if (std::string problem = ElementProblem(message, field, 0); !problem.empty()) {
        is_valid = false;
        problems_.AddError(positions_, at, problem);
      }
      if (is_valid) continue;
      if (drop != nullptr) r.ClearField(drop, &field);
      if (invalid_keys_ != nullptr) invalid_keys_->push_back(std::move(at));
    }
    CheckUnknown(message, path);
  }

 private:
  void CheckElements(const Message& message, Message* drop, const FieldDescriptor& field, const std::string& at) {
    const auto& r = *message.GetReflection();
    const int size = r.FieldSize(message, &field);
    for (int i = 0; i < size; ++i) {
      Check(r.GetRepeatedMessage(message, &field, i),
            drop == nullptr ? nullptr : r.MutableRepeatedMessage(drop, &field, i), yaml::ElementPath(at, i));
    }
  }

  // A newer client has set a field that is unknown here. Ignoring it could change the meaning of the job.
  void CheckUnknown(const Message& message, const std::string& path) {
    const auto& unknown = message.GetReflection()->GetUnknownFields(message);
    if (unknown.empty()) return;
    problems_.AddError(positions_, path,
                       absl::StrCat("holds field number ", unknown.field(0).number(),
                                    ", which this version does not know; use a client of this version, or a newer "
                                    "coordinator"));
  }

  void Missing(const FieldDescriptor& field, const std::string& at) {
    // A key with a position was given in the file. If it is no map, its value was rejected, which has been reported. A
    // map that was given without keys is unset, too, and has not been reported.
    if (field.message_type() == nullptr && positions_.count(at) > 0) return;
    problems_.AddError(positions_, at, absl::StrCat("is required; expected ", yaml::Expectation(field)));
  }

  bool CheckList(const Message& message, const FieldDescriptor& field, const std::string& at) {
    const v1::FieldRule& rule = yaml::RuleOf(field);
    const int size = message.GetReflection()->FieldSize(message, &field);
    if (size == 0) {
      if (rule.required()) Missing(field, at);
      return true;
    }
    const auto count = static_cast<uint32_t>(size);
    const bool too_few = rule.has_min_items() && count < rule.min_items() && positions_.count(at) == 0;
    if (too_few || (rule.has_max_items() && count > rule.max_items())) {
      problems_.AddError(positions_, at,
                         absl::StrCat("expected ", yaml::Expectation(field), ", found a list of ", size,
                                      too_few ? "" : absl::StrCat("; at most ", rule.max_items(), " are accepted")));
      return false;
    }
    if (field.message_type() != nullptr) return true;
    bool is_valid = true;
    for (int i = 0; i < size; ++i) {
      std::string problem = ElementProblem(message, field, i);
      if (problem.empty()) continue;
      is_valid = false;
      problems_.AddError(positions_, at, problem);
    }
    return is_valid;
  }

  const Positions& positions_;
  Problems& problems_;
  std::vector<std::string>* invalid_keys_;
};

}  // namespace

namespace yaml {

std::string TextProblem(const FieldDescriptor& field, absl::string_view text) {
  const uint32_t file_bytes = RuleOf(field).file_bytes();
  const size_t bytes_max = file_bytes == 0 ? limits::kPathBytes : file_bytes;
  if (text.size() > bytes_max) {
    return absl::StrCat("is ", text.size(), " bytes long; at most ", bytes_max, " are accepted");
  }
  if (file_bytes != 0) {
    const std::string one_line = absl::StrReplaceAll(text, {{"\n", " "}, {"\r", " "}, {"\t", " "}});
    const std::string wrong = WhyNotPlainText(one_line);
    return wrong.empty() ? "" : absl::StrCat(wrong, "; a text must be UTF-8 without control characters");
  }
  if (std::string problem = WhyNotPlainText(text); !problem.empty()) {
    return absl::StrCat(problem, "; a string must be one line of UTF-8 without control characters");
  }
  if (RuleOf(field).path() && (text.empty() || text[0] != '/')) {
    return absl::StrCat("must be an absolute path, found '", text.substr(0, 200), "'");
  }
  return "";
}

}  // namespace yaml

void CheckRules(const Message& message, const Positions& positions, Problems* problems) {
  RuleChecker(positions, problems, nullptr).Check(message, nullptr, "");
}

void DropInvalid(Message* message, Positions* positions, Problems* problems) {
  std::vector<std::string> invalid_keys;
  RuleChecker(*positions, problems, &invalid_keys).Check(*message, message, "");
  // Later rules must know that these keys were given, as for keys that the reader rejected.
  for (std::string& key : invalid_keys) positions->emplace(std::move(key), Position{});
}

void ApplyDefaults(Message* message) {
  const auto& descriptor = *message->GetDescriptor();
  const auto& reflection = *message->GetReflection();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (field.message_type() != nullptr && !field.is_repeated()) {
      ApplyDefaults(reflection.MutableMessage(message, &field));
      continue;
    }
    if (field.message_type() != nullptr) {
      const int size = reflection.FieldSize(*message, &field);
      for (int e = 0; e < size; ++e) ApplyDefaults(reflection.MutableRepeatedMessage(message, &field, e));
      continue;
    }
    const std::string& text = yaml::RuleOf(field).default_value();
    const bool set =
        field.is_repeated() ? reflection.FieldSize(*message, &field) > 0 : reflection.HasField(*message, &field);
    if (text.empty() || set) continue;
    // Defaults are part of the schema, and a test reads all of them, so there are no problems.
    Problems problems;
    SetYamlKey(yaml::KeyOf(field), {.text = text, .file_name = "", .working_directory = ""}, message, &problems);
  }
}

}  // namespace trainyard
