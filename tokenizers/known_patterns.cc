#include "tokenizers/known_patterns.h"

#include "tokenizers/utf8.h"

namespace trainyard {
namespace {

constexpr uint16_t kLetterOrNumber = unicode::kLetter | unicode::kNumber;
constexpr uint16_t kNotSymbol = kLetterOrNumber | unicode::kSpace;

// A position in the text, with the classes of the character there.
class Cursor {
 public:
  Cursor(absl::string_view text, size_t at, const uint16_t* classes) : text_(text), classes_(classes), at_(at) {
    Read();
  }

  bool end() const { return at_ == text_.size(); }
  size_t at() const { return at_; }
  char byte() const { return text_[at_]; }
  bool Is(uint16_t mask) const { return (here_ & mask) != 0; }
  bool IsSymbol() const { return !end() && (here_ & kNotSymbol) == 0; }
  void Advance() {
    at_ = next_;
    Read();
  }

 private:
  void Read() {
    next_ = at_;
    here_ = at_ < text_.size() ? classes_[utf8::Next(text_, next_)] : 0;
  }

  absl::string_view text_;
  const uint16_t* classes_;
  size_t at_;
  size_t next_ = 0;
  uint16_t here_ = 0;  // the classes of the character at at_; 0 at the end
};

// The length of 's, 't, 're, 've, 'm, 'll or 'd at `at`, where an apostrophe is; 0 if it is none of these. If case is
// ignored, the long s (U+017F) is an s too.
size_t Contraction(absl::string_view text, size_t at, bool ignore_case) {
  const auto letter = [&](size_t index) {
    const char c = index < text.size() ? text[index] : '\0';
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = letter(at + 1), second = letter(at + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) return 3;
  return ignore_case && text.substr(at + 1, 2) == "\xC5\xBF" ? 3 : 0;
}

// The end of `\s+(?!\S)|\s+` at a space: the end of the run of spaces, without its last space if text follows and the
// run has several.
size_t SpacesEnd(absl::string_view text, Cursor cursor) {
  size_t before_last = cursor.at();
  const size_t begin = cursor.at();
  while (cursor.Is(unicode::kSpace)) {
    before_last = cursor.at();
    cursor.Advance();
  }
  return cursor.at() == text.size() || before_last == begin ? cursor.at() : before_last;
}

size_t Gpt2End(absl::string_view text, size_t at, const uint16_t* classes) {
  Cursor cursor(text, at, classes);
  if (cursor.byte() == '\'') {
    if (const size_t length = Contraction(text, at, false); length > 0) return at + length;
  }
  const Cursor begin = cursor;
  if (cursor.byte() == ' ') cursor.Advance();
  for (const uint16_t one : {unicode::kLetter, unicode::kNumber}) {
    if (!cursor.Is(one)) continue;
    while (cursor.Is(one)) cursor.Advance();
    return cursor.at();
  }
  if (cursor.IsSymbol()) {
    while (cursor.IsSymbol()) cursor.Advance();
    return cursor.at();
  }
  return SpacesEnd(text, begin);
}

// The end of `\s*[\r\n]+`: after the last line end in the run of spaces here; the beginning of the run if it has none.
size_t LineEndsEnd(Cursor cursor) {
  size_t end = cursor.at();
  while (cursor.Is(unicode::kSpace)) {
    const bool is_newline = cursor.Is(unicode::kNewline);
    cursor.Advance();
    if (is_newline) end = cursor.at();
  }
  return end;
}

size_t Llama3End(absl::string_view text, size_t at, const uint16_t* classes, int digits) {
  Cursor cursor(text, at, classes);
  if (cursor.byte() == '\'') {
    if (const size_t length = Contraction(text, at, true); length > 0) return at + length;
  }
  const Cursor begin = cursor;
  if (cursor.Is(unicode::kNumber)) {
    for (int count = 0; count < digits && cursor.Is(unicode::kNumber); ++count) cursor.Advance();
    return cursor.at();
  }
  if (!cursor.Is(unicode::kLetter | unicode::kNewline)) cursor.Advance();
  if (cursor.Is(unicode::kLetter)) {
    while (cursor.Is(unicode::kLetter)) cursor.Advance();
    return cursor.at();
  }
  cursor = begin;
  if (cursor.byte() == ' ') cursor.Advance();
  if (cursor.IsSymbol()) {
    while (cursor.IsSymbol()) cursor.Advance();
    while (cursor.Is(unicode::kNewline)) cursor.Advance();
    return cursor.at();
  }
  const size_t lines = LineEndsEnd(begin);
  return lines > at ? lines : SpacesEnd(text, begin);
}

}  // namespace

KnownPattern Recognize(absl::string_view pattern) {
  if (pattern == kGpt2Pattern) return KnownPattern::kGpt2;
  if (pattern == kLlama3Pattern) return KnownPattern::kLlama3;
  if (pattern == kQwen2Pattern) return KnownPattern::kQwen2;
  return KnownPattern::kNone;
}

size_t MatchEnd(KnownPattern pattern, absl::string_view text, size_t at, const uint16_t* classes) {
  if (pattern == KnownPattern::kGpt2) return Gpt2End(text, at, classes);
  return Llama3End(text, at, classes, pattern == KnownPattern::kLlama3 ? 3 : 1);
}

}  // namespace trainyard
