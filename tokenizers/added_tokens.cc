#include "tokenizers/added_tokens.h"

#include <algorithm>

#include "tokenizers/unicode.h"
#include "tokenizers/utf8.h"

namespace trainyard {
namespace {

bool EndsIn(absl::string_view text, uint16_t mask) {
  if (text.empty()) return false;
  size_t at = utf8::Previous(text, text.size());
  return (unicode::Classes()[utf8::Next(text, at)] & mask) != 0;
}

bool BeginsIn(absl::string_view text, uint16_t mask) {
  size_t at = 0;
  return !text.empty() && (unicode::Classes()[utf8::Next(text, at)] & mask) != 0;
}

}  // namespace

void TokenFinder::Add(absl::string_view text, const AddedToken& token) {
  if (text.empty()) return;
  begins_[static_cast<unsigned char>(text[0])] = true;
  uint32_t node = 0;
  for (const char c : text) {
    const auto [child, is_new] =
        children_.emplace(uint64_t{node} << 8 | static_cast<unsigned char>(c), static_cast<uint32_t>(nodes_.size()));
    if (is_new) nodes_.emplace_back();
    node = child->second;
  }
  if (nodes_[node].token >= 0) return;
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

const AddedToken* TokenFinder::LongestAt(absl::string_view text, size_t at, size_t& size) const {
  const AddedToken* longest = nullptr;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto child = children_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
    if (child == children_.end()) break;
    node = child->second;
    if (nodes_[node].token < 0) continue;
    longest = &tokens_[nodes_[node].token];
    size = i + 1 - at;
  }
  return longest;
}

void TokenFinder::Cut(absl::string_view text, Part part) const {
  size_t done = 0;  // the end of what `part` has received
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    size_t size = 0;
    const AddedToken* const token = begins_[static_cast<unsigned char>(text[at])] ? LongestAt(text, at, size) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + size;
    at = end;  // the search resumes here, even if the token gets the spaces after it
    if (token->single_word &&
        (EndsIn(text.substr(0, begin), unicode::kWord) || BeginsIn(text.substr(end), unicode::kWord))) {
      continue;
    }
    while (token->lstrip && begin > done && EndsIn(text.substr(0, begin), unicode::kSpace)) {
      begin = utf8::Previous(text, begin);
    }
    if (token->lstrip) begin = std::max(begin, done);
    while (token->rstrip && BeginsIn(text.substr(end), unicode::kSpace)) {
      end += utf8::Length(static_cast<unsigned char>(text[end]));
    }
    if (done < begin) part(text.substr(done, begin - done), -1);
    part(text.substr(begin, end - begin), token->id);
    done = end;
  }
  if (done < text.size()) part(text.substr(done), -1);
}

}  // namespace trainyard
