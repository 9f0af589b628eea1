// How the token cache turns text into tokens: a tokenizer with the rules for the beginning and the end of a document.
//
//   document = what the tokenizer's template puts before a text + text + what the template puts after it
//              + the token that ends a text, unless the document ends with it already
//
// Immutable and thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;

  // Appends the tokens of `text`. `begins`: the text begins a document; otherwise it continues one. Possible errors:
  // InvalidArgument with the reason; ResourceExhausted: the text is too long.
  virtual absl::Status Append(absl::string_view text, bool begins, std::vector<int64_t>& tokens) const = 0;
  // The same without what the template of the tokenizer puts before a text: the text already contains its special
  // tokens.
  virtual absl::Status AppendPlain(absl::string_view text, bool begins, std::vector<int64_t>& tokens) const = 0;
  // Appends what ends a document.
  virtual void End(std::vector<int64_t>& tokens) const = 0;
  // Whether there is a token that ends a document, so that documents can be joined.
  virtual bool has_end() const = 0;
  // A position after `from` where the text may be cut so that the tokens of its parts are those of the whole;
  // text.size() if there is none. Whether a position is such a cut depends only on the characters next to it.
  // REQUIRES: valid UTF-8.
  virtual size_t NextCut(absl::string_view text, size_t from) const = 0;
  // The number of tokens: every token is less than this.
  virtual int64_t vocabulary() const = 0;
  // What distinguishes this tokenizer from others: its kind and the hash of its file.
  virtual std::string identity() const = 0;
};

// One token per byte. Byte 0, which text does not contain in practice, ends a document.
std::unique_ptr<TextEncoder> NewByteEncoder();

// The tokenizer of a file, or of a folder with one. Fails with the errors of OpenTokenizer.
absl::StatusOr<std::unique_ptr<TextEncoder>> OpenTextEncoder(const std::string& path);

}  // namespace trainyard
