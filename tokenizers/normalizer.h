// The normalizer of a tokenizer.json: changes a text before it is split. Immutable and thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/json_part.h"
#include "tokenizers/unicode.h"

namespace trainyard {

class Normalizer {
 public:
  // Reads a normalizer or a sequence of normalizers. Null is a normalizer that changes nothing.
  static Normalizer Read(const JsonPart& json);

  bool is_empty() const { return steps_.empty(); }
  // `continues`: the text continues another one, so nothing is put before it. REQUIRES: valid UTF-8.
  // Possible errors: those of Pattern::Parts.
  absl::StatusOr<std::string> Apply(absl::string_view text, bool continues) const;
  // Whether a text may be cut after a newline and its parts normalized separately.
  bool WorksByLines() const;

 private:
  enum class Kind { kForm, kLowercase, kStrip, kReplace, kPrepend };
  struct Step {
    Kind kind;
    unicode::Form form = unicode::Form::kNfc;
    bool left = false, right = false;
    Pattern pattern = Pattern::Literal("");
    std::string content = {};
  };
  void Add(const JsonPart& json, int depth);

  std::vector<Step> steps_;
};

}  // namespace trainyard
