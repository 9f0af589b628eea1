// How the token cache turns text into tokens. It hides which tokenizer does it.
//
// Immutable and thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace trainyard {

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;

  // Appends the tokens of `text`, which is valid UTF-8. `begins`: the text is the beginning of a document; otherwise it
  // continues one, and gets no prefix. Possible errors: InvalidArgument with the reason.
  virtual absl::Status Append(absl::string_view text, bool begins, std::vector<int64_t>& tokens) const = 0;
  // The token that ends a document; -1: the tokenizer has none.
  virtual int64_t end_of_document() const = 0;
  // Every token is smaller.
  virtual int64_t vocabulary() const = 0;
  // What distinguishes this tokenizer from others: its kind and the hash of its file.
  virtual std::string identity() const = 0;
};

// One token per byte. Byte 0, which text does not contain in practice, ends a document.
std::unique_ptr<TextEncoder> NewByteEncoder();

}  // namespace trainyard
