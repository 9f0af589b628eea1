#include "worker/agent/text.h"

#include <string>
#include <utility>
#include <vector>

#include "common/plain_text.h"

namespace trainyard::agent {

void MakeValidUtf8(google::protobuf::Message* message) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool is_text = field->type() == FieldDescriptor::TYPE_STRING;
    if (field->is_map() || (!is_text && field->message_type() == nullptr)) continue;
    const int count = field->is_repeated() ? reflection.FieldSize(*message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (is_text) {
        const std::string text = field->is_repeated() ? reflection.GetRepeatedString(*message, field, i)
                                                      : reflection.GetString(*message, field);
        // Nothing is cut off: each invalid byte becomes U+FFFD, which has three bytes.
        std::string valid = ValidUtf8(text, 3 * text.size());
        if (valid == text) continue;
        if (field->is_repeated()) reflection.SetRepeatedString(message, field, i, std::move(valid));
        if (!field->is_repeated()) reflection.SetString(message, field, std::move(valid));
      } else {
        MakeValidUtf8(field->is_repeated() ? reflection.MutableRepeatedMessage(message, field, i)
                                           : reflection.MutableMessage(message, field));
      }
    }
  }
}

}  // namespace trainyard::agent
