#include "tokenizers/byte_tokenizer.h"

#include <algorithm>

namespace trainyard {

absl::Status ByteTokenizer::Append(absl::string_view text, const EncodeOptions&, std::vector<int32_t>& ids) const {
  ids.reserve(ids.size() + text.size());
  for (char c : text) ids.push_back(static_cast<uint8_t>(c));
  return absl::OkStatus();
}

std::string ByteTokenizer::Decode(absl::Span<const int32_t> ids, bool) const {
  std::string text;
  text.reserve(ids.size());
  for (int32_t id : ids) {
    if (id >= 0 && id < kVocabulary) text += static_cast<char>(id);
  }
  return text;
}

int32_t ByteTokenizer::IdOf(absl::string_view token) const {
  return token.size() == 1 ? static_cast<uint8_t>(token[0]) : -1;
}

std::string ByteTokenizer::TokenOf(int32_t id) const { return Decode({id}); }

size_t ByteTokenizer::NextSafeCut(absl::string_view text, size_t from) const { return std::min(from + 1, text.size()); }

const std::string& ByteTokenizer::hash() const {
  static const auto* const hash = new std::string("bytes");
  return *hash;
}

}  // namespace trainyard
