#include "worker/agent/text.h"

#include <cstdint>
#include <vector>

namespace trainyard::agent {
namespace {

// Length of the well-formed sequence at the start of `text` (Unicode 15, table 3-7); 0: there is none.
size_t SequenceLength(absl::string_view text) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  uint8_t first = byte(0);
  if (first < 0x80) return 1;
  size_t length = first >= 0xc2 && first <= 0xdf   ? 2
                  : first >= 0xe0 && first <= 0xef ? 3
                  : first >= 0xf0 && first <= 0xf4 ? 4
                                                   : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, beyond U+10FFFF.
  if (first == 0xe0 && byte(1) < 0xa0) return 0;
  if (first == 0xed && byte(1) > 0x9f) return 0;
  if (first == 0xf0 && byte(1) < 0x90) return 0;
  if (first == 0xf4 && byte(1) > 0x8f) return 0;
  return length;
}

}  // namespace

std::string ValidUtf8(absl::string_view text, size_t bytes_max) {
  constexpr absl::string_view kReplacement = "\xef\xbf\xbd";
  std::string valid;
  while (!text.empty()) {
    size_t length = SequenceLength(text);
    absl::string_view piece = length > 0 ? text.substr(0, length) : kReplacement;
    if (valid.size() + piece.size() > bytes_max) break;
    valid.append(piece.data(), piece.size());
    text.remove_prefix(length > 0 ? length : 1);
  }
  return valid;
}

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
