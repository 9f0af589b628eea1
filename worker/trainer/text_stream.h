// Turns the tokens of one text into parts that may be printed as soon as they arrive: together the parts are the text
// of all tokens, and none ends within a character. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tokenizers/tokenizer.h"

namespace trainyard {

class TextStream {
 public:
  // The tokenizer must outlive the stream.
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Returns the text that these tokens complete. This text may end before the last of the tokens, and may be empty.
  std::string Add(absl::Span<const int64_t> tokens);
  // Returns the rest. An incomplete character at its end is U+FFFD; a ByteTokenizer returns the bytes of it.
  std::string Finish();

 private:
  std::string Decode(size_t first, size_t last) const;
  std::string Release(const std::string& text);

  const Tokenizer& tokenizer_;
  std::vector<int32_t> tokens_;
  // The text of a token may depend on those before it (many tokenizers remove a space before the first token), so
  // the tokens whose text was returned last, [context_, returned_), are decoded again together with the new ones.
  size_t context_ = 0;
  size_t returned_ = 0;
  int times_held_back_ = 0;
};

}  // namespace trainyard
