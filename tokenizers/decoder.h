// The decoder of a tokenizer.json: joins tokens to a text. Immutable and thread-safe.
#pragma once

#include <string>
#include <vector>

#include "tokenizers/json_part.h"

namespace trainyard {

class TokenDecoder {
 public:
  // Reads a decoder or a sequence of decoders. Null is a decoder that joins the tokens with spaces.
  static TokenDecoder Read(const JsonPart& json);

  std::string Decode(std::vector<std::string> tokens) const;

 private:
  enum class Kind { kByteLevel, kMetaspace, kByteFallback, kFuse, kStrip, kReplace, kBpe };
  struct Step {
    Kind kind;
    Pattern pattern = Pattern::Literal("");
    std::string content;
    size_t start = 0, stop = 0;
    bool drops_prefix = true;
  };
  void Add(const JsonPart& json, int depth);

  bool joins_with_spaces_ = false;
  std::vector<Step> steps_;
};

}  // namespace trainyard
