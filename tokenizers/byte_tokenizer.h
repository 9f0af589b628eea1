// Text to tokens and back. The byte tokenizer has one token a byte: any text in any language, no file needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace trainyard {

class ByteTokenizer {
 public:
  static constexpr int64_t kVocabulary = 256;

  std::vector<int64_t> Encode(absl::string_view text) const;
  // REQUIRES: 0 <= token < kVocabulary for every token.
  std::string Decode(absl::Span<const int64_t> tokens) const;
};

}  // namespace trainyard
