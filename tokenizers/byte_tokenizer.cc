#include "tokenizers/byte_tokenizer.h"

namespace trainyard {

std::vector<int64_t> ByteTokenizer::Encode(absl::string_view text) const {
  std::vector<int64_t> tokens;
  tokens.reserve(text.size());
  for (char c : text) tokens.push_back(static_cast<uint8_t>(c));
  return tokens;
}

std::string ByteTokenizer::Decode(absl::Span<const int64_t> tokens) const {
  return std::string(tokens.begin(), tokens.end());
}

}  // namespace trainyard
