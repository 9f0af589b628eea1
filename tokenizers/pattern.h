// A regular expression of a tokenizer.json, with the meaning that the Python library `tokenizers` gives it: its syntax
// is Oniguruma's and its classes are those of unicode.h. Hand-written code matches the patterns of well-known
// models (known_patterns.h), and PCRE2 matches the others. Immutable and thread-safe.
//
// Constructs to which PCRE2 gives another meaning are refused: anchors, back references, scripts, nested classes.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/known_patterns.h"

namespace trainyard {

class Pattern {
 public:
  // Possible errors: InvalidArgument: `expression` is invalid or not supported; the message names the part.
  static absl::StatusOr<Pattern> Regex(absl::string_view expression);
  // Returns a pattern that matches `text` literally.
  static Pattern Literal(absl::string_view text);

  // kNone: not one of the known patterns.
  KnownPattern known() const { return known_; }
  bool is_literal() const { return compiled_ == nullptr && known_ == KnownPattern::kNone; }
  const std::string& text() const { return text_; }

  // Calls `found` with each part of `text`, in order: matches, and what is between them. Parts may be empty.
  // Possible errors: ResourceExhausted: the search needs more than limits::kPatternSteps or kPatternHeapKiB.
  using Found = absl::FunctionRef<void(absl::string_view part, bool is_match)>;
  absl::Status Parts(absl::string_view text, Found found) const;

 private:
  struct Compiled;
  absl::Status PartsOfRegex(absl::string_view text, Found found) const;

  std::string text_;
  KnownPattern known_ = KnownPattern::kNone;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace trainyard
