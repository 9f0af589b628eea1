// CheckRules and ApplyDefaults of strict_yaml.h: rules of the schema on a message, wherever it came from.
#include <yaml-cpp/yaml.h>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/strict_yaml.h"
#include "common/yaml_schema.h"

namespace trainyard {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Element `i` of a repeated field, or the field itself, as a number; enums and texts have none.
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

bool HasRange(const FieldDescriptor& field) {
  const v1::FieldRule& rule = yaml::RuleOf(field);
  return rule.has_min() || rule.has_max();
}

class RuleChecker {
 public:
  RuleChecker(const Positions& positions, Problems* problems) : positions_(positions), problems_(*problems) {}

  void Check(const Message& message, const std::string& path) {
    const auto& descriptor = *message.GetDescriptor();
    for (int i = 0; i < descriptor.field_count(); ++i) {
      const FieldDescriptor& field = *descriptor.field(i);
      std::string at = yaml::JoinKeys(path, yaml::KeyOf(field));
      if (field.is_repeated()) {
        CheckList(message, field, at);
      } else if (!message.GetReflection()->HasField(message, &field)) {
        if (yaml::RuleOf(field).required()) Missing(field, at);
      } else if (field.message_type() != nullptr) {
        Check(message.GetReflection()->GetMessage(message, &field), at);
      } else {
        CheckOne(message, field, at, 0);
      }
    }
  }

 private:
  void Missing(const FieldDescriptor& field, const std::string& at) {
    // A key that was given and refused has had its problem; a map without a single key has not.
    if (field.message_type() == nullptr && positions_.count(at) > 0) return;
    problems_.AddError(positions_, at, absl::StrCat("is required: ", yaml::Expectation(field)));
  }

  void CheckList(const Message& message, const FieldDescriptor& field, const std::string& at) {
    const v1::FieldRule& rule = yaml::RuleOf(field);
    const int size = message.GetReflection()->FieldSize(message, &field);
    if (size == 0) {
      if (rule.required()) Missing(field, at);
      return;
    }
    const auto count = static_cast<uint32_t>(size);
    const bool few = rule.has_min_items() && count < rule.min_items() && positions_.count(at) == 0;
    if (few || (rule.has_max_items() && count > rule.max_items())) {
      problems_.AddError(positions_, at,
                         absl::StrCat("expected ", yaml::Expectation(field), ", found a list of ", size));
    }
    for (int i = 0; i < size; ++i) CheckOne(message, field, at, i);
  }

  void CheckOne(const Message& message, const FieldDescriptor& field, const std::string& at, int i) {
    const auto& r = *message.GetReflection();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      int number = field.is_repeated() ? r.GetRepeatedEnumValue(message, &field, i) : r.GetEnumValue(message, &field);
      if (number == 0 || field.enum_type()->FindValueByNumber(number) == nullptr) {
        problems_.AddError(positions_, at,
                           absl::StrCat("expected ", yaml::Expectation(field), ", found the unknown value ", number));
      }
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      std::string scratch;
      const std::string& text = field.is_repeated() ? r.GetRepeatedStringReference(message, &field, i, &scratch)
                                                    : r.GetStringReference(message, &field, &scratch);
      if (text.size() > limits::kPathBytes) {
        problems_.AddError(
            positions_, at,
            absl::StrCat("is ", text.size(), " bytes long; at most ", limits::kPathBytes, " are accepted"));
      }
    } else if (HasRange(field)) {
      double value = NumberOf(message, field, i);
      if (!yaml::InRange(field, value)) {
        problems_.AddError(positions_, at,
                           absl::StrCat(yaml::RangeSentence(field), ", found ", yaml::NumberText(value)));
      }
    }
  }

  const Positions& positions_;
  Problems& problems_;
};

}  // namespace

void CheckRules(const Message& message, const Positions& positions, Problems* problems) {
  RuleChecker(positions, problems).Check(message, "");
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
    const std::string& text = yaml::RuleOf(field).default_value();
    const bool set =
        field.is_repeated() ? reflection.FieldSize(*message, &field) > 0 : reflection.HasField(*message, &field);
    if (text.empty() || set) continue;
    // Defaults are part of the schema and a test reads them all, so a problem here cannot be.
    Problems problems;
    SetYamlKey(yaml::KeyOf(field), {.text = text, .file_name = "", .working_directory = ""}, message, &problems);
  }
}

}  // namespace trainyard
