// Splits the text of a template into tokens by the rules of jinja2 with trim_blocks and lstrip_blocks, as transformers
// sets them: what is between the tags becomes data, without the whitespace that the tags remove. Pure, thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard::templates {

enum class TokenKind {
  kData,
  kOutputBegin,
  kOutputEnd,
  kTagBegin,
  kTagEnd,
  kName,
  kText,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // of a text: its content; of a number: its digits
  int line = 0;      // from 1

  bool is_name(absl::string_view name) const { return kind == TokenKind::kName && text == name; }
  bool is_operator(absl::string_view name) const { return kind == TokenKind::kOperator && text == name; }
};

// The tokens of a template, with kEnd at the end. REQUIRES: valid UTF-8. Possible errors: InvalidArgument with a line.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

}  // namespace trainyard::templates
