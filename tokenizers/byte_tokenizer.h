// The tokenizer with one token per byte: the token is the value of the byte. It works for any text in any encoding and
// needs no file. Stateless and thread-safe.
//
//   std::vector<int64_t> tokens = ByteTokenizer().Encode("A");   // {65}
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
