// The pre-tokenizer of a tokenizer.json: splits a text into words. No token spans two words. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tokenizers/json_part.h"

namespace trainyard {

class PreTokenizer {
 public:
  // Reads a pre-tokenizer or a sequence of pre-tokenizers. Null gives a pre-tokenizer that does not split.
  static PreTokenizer Read(const JsonPart& json);

  // Whether the model sees the bytes of words as letters (byte_letters.h).
  bool is_byte_level() const { return !steps_.empty() && steps_.back().kind == Kind::kByteLevel; }

  struct Piece {
    absl::string_view text;  // not empty
    bool is_start = false;   // at the beginning of the whole text
  };
  using Sink = absl::FunctionRef<void(absl::string_view word)>;
  // Calls `word` with each word, which is valid only during the call. `continues`: the text continues an earlier text,
  // so a piece with is_start gets no prefix. Possible errors: those of Pattern::Parts.
  absl::Status Split(Piece piece, bool continues, Sink word) const;

  // Whether a text may be cut after a newline that stands between two characters that are not spaces: the two parts
  // then give the same tokens as the whole. `within_words`: the model also allows such cuts inside a word, because no
  // token contains a newline and a character after it.
  bool WorksByLines(bool within_words) const;

 private:
  enum class Kind { kByteLevel, kSplit, kDigits, kMetaspace, kWhitespace, kWhitespaceSplit, kPunctuation };
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Scheme { kAlways, kFirst, kNever };
  struct Step {
    Kind kind;
    Pattern pattern = Pattern::Literal("");  // of kSplit, and of kByteLevel if it splits
    bool splits = true;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    bool add_prefix_space = false;
    Scheme scheme = Scheme::kAlways;
    std::string replacement;
  };
  using Pieces = absl::FunctionRef<void(Piece)>;

  void Add(const JsonPart& json, int depth);
  static Step ReadMetaspace(const JsonPart& json);
  static Step ReadSplit(const JsonPart& json);
  static Behavior ReadBehavior(const JsonPart& json);
  void Run(size_t step, Piece piece, bool continues, Sink word, absl::Status& status) const;
  static void Metaspace(const Step& step, Piece piece, bool continues, Pieces next);
  static absl::Status SplitByPattern(const Step& step, Piece piece, Pieces next);
  static void SplitByClass(const Step& step, uint16_t mask, Piece piece, Pieces next);
  static void Whitespace(Piece piece, Pieces next);

  std::vector<Step> steps_;
};

}  // namespace trainyard
