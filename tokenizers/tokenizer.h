// A tokenizer: converts text to the ids of tokens and back.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer("model/"));      // open_tokenizer.h
//   ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer->Encode("Hello"));
//   std::string text = tokenizer->Decode(ids);
//
// Immutable and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace trainyard {

struct EncodeOptions {
  // Adds the tokens that the file's template puts around a text, such as the one that begins a text.
  bool special_tokens = false;
  // The text continues a text that ended at a safe cut, so no prefix is put before it.
  bool continues = false;
};

// Ids of tokens with a meaning; -1: there is none, or it is not known.
struct SpecialIds {
  int32_t begin = -1;  // of a text
  int32_t end = -1;    // of a text
  int32_t padding = -1;
  int32_t unknown = -1;
};

// The tokens that the file's template puts around a text.
struct TokensAround {
  std::vector<int32_t> before = {}, after = {};
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the tokens of `text`. Possible errors: InvalidArgument: the text is not valid UTF-8, or has a character
  // that no token can express; ResourceExhausted: the text is too large for one call.
  virtual absl::Status Append(absl::string_view text, const EncodeOptions& options,
                              std::vector<int32_t>& ids) const = 0;
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, const EncodeOptions& options = {}) const {
    std::vector<int32_t> ids;
    if (absl::Status status = Append(text, options, ids); !status.ok()) return status;
    return ids;
  }

  // The text of tokens; ids that do not exist are skipped. If the last character is incomplete, the text ends with
  // U+FFFD. `skip_special`: special tokens are left out.
  virtual std::string Decode(absl::Span<const int32_t> ids, bool skip_special = false) const = 0;

  // The largest id plus 1: the least number of rows that the embedding of a model needs.
  virtual int64_t vocabulary() const = 0;
  virtual SpecialIds special() const = 0;
  // What Append adds with EncodeOptions::special_tokens; nothing unless the tokenizer has a template.
  virtual TokensAround around() const { return {}; }
  // The id of a token as it is written in the file, or -1.
  virtual int32_t IdOf(absl::string_view token) const = 0;
  // A token as it is written in the file; empty: there is no such id.
  virtual std::string TokenOf(int32_t id) const = 0;

  // The first safe cut after `from`, or text.size() if there is none. At a safe cut, a text may be divided without a
  // change of its tokens, if every part but the first is encoded with `continues`. Whether a position is safe depends
  // only on the characters next to it. REQUIRES: valid UTF-8.
  virtual size_t NextSafeCut(absl::string_view text, size_t from) const = 0;

  // bytes, BPE or SentencePiece.
  virtual absl::string_view kind() const = 0;
  // Identifies the tokenizer: a hash of the files that define it, and of libsentencepiece if that gives the ids.
  virtual const std::string& hash() const = 0;
};

}  // namespace trainyard
