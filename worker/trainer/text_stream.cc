#include "worker/trainer/text_stream.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "tokenizers/utf8.h"

namespace trainyard {
namespace {

constexpr absl::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD
// Tokens that do not form complete characters after this many additions never will.
constexpr int kTimesHeldBack = 16;

// Whether the text may end within a character: with U+FFFD, which stands for missing bytes, or with the first bytes of
// a character.
bool MayEndWithinCharacter(absl::string_view text) {
  if (absl::EndsWith(text, kReplacement)) return true;
  size_t last = text.size();
  while (last > 0 && (text[--last] & 0xC0) == 0x80) continue;
  if (text.empty()) return false;
  const unsigned char lead = static_cast<unsigned char>(text[last]);
  return lead >= 0xC2 && lead < 0xF5 && text.size() - last < utf8::Length(lead);
}

}  // namespace

std::string TextStream::Add(absl::Span<const int64_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  const std::string text = Decode(context_, tokens_.size());
  if (MayEndWithinCharacter(text) && ++times_held_back_ < kTimesHeldBack) return "";
  return Release(text);
}

std::string TextStream::Finish() { return Release(Decode(context_, tokens_.size())); }

std::string TextStream::Decode(size_t first, size_t last) const {
  return tokenizer_.Decode(absl::MakeSpan(tokens_).subspan(first, last - first), /*skip_special=*/true);
}

// `text`: the text of all tokens from context_ on.
std::string TextStream::Release(const std::string& text) {
  const std::string before = Decode(context_, returned_);
  // If `text` does not begin with `before`, the new tokens have changed the text before them, which happens only with
  // invalid bytes.
  std::string released =
      absl::StartsWith(text, before) ? text.substr(before.size()) : Decode(returned_, tokens_.size());
  times_held_back_ = 0;
  context_ = returned_;
  returned_ = tokens_.size();
  return released;
}

}  // namespace trainyard
