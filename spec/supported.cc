#include "spec/supported.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/strict_yaml.h"

namespace trainyard {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// clang-format off
constexpr const char* kNotYet[] = {
    "train.freeze",
    "train.data.uneven",
    "parallel.gather_bucket_elements",
    "parallel.all_gather",
    "parallel.persist_elements",
};
// clang-format on

bool IsSet(const Message& message, const FieldDescriptor& field) {
  return field.is_repeated() ? message.GetReflection()->FieldSize(message, &field) > 0
                             : message.GetReflection()->HasField(message, &field);
}

// Whether `field` of `message` says anything that leaving it out would not.
bool Differs(const Message& message, const FieldDescriptor& field) {
  if (!IsSet(message, field)) return false;
  if (field.message_type() != nullptr && !field.is_repeated()) {
    const Message& inner = message.GetReflection()->GetMessage(message, &field);
    for (int i = 0; i < field.message_type()->field_count(); ++i) {
      if (Differs(inner, *field.message_type()->field(i))) return true;
    }
    return false;
  }
  Message* plain = message.New();
  ApplyDefaults(plain);
  const bool differs = !IsSet(*plain, field) || FieldYaml(*plain, field) != FieldYaml(message, field);
  delete plain;
  return differs;
}

}  // namespace

void CheckSupported(const v1::JobSpec& spec, const Positions& positions, Problems* problems) {
  for (const char* path : kNotYet) {
    const Message* message = &spec;
    const std::vector<std::string> keys = absl::StrSplit(path, '.');
    const FieldDescriptor* field = nullptr;
    for (size_t i = 0; i < keys.size() && message != nullptr; ++i) {
      field = message->GetDescriptor()->FindFieldByName(keys[i]);
      if (i + 1 == keys.size()) break;
      message = IsSet(*message, *field) ? &message->GetReflection()->GetMessage(*message, field) : nullptr;
    }
    if (message == nullptr || !Differs(*message, *field)) continue;
    problems->AddError(positions, path, "is not supported by this version; leave it out");
  }
  if (spec.parallel().reshard_after_forward() >= 2) {
    problems->AddError(positions, "parallel.reshard_after_forward",
                       "of a group is not supported by this version; choose true or false");
  }
}

}  // namespace trainyard
