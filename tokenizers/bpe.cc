#include "tokenizers/bpe.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "tokenizers/byte_letters.h"
#include "tokenizers/utf8.h"

namespace trainyard {
namespace {

constexpr uint32_t kBasicPlane = 0x10000;

uint32_t FirstCharacter(absl::string_view token) {
  size_t at = 0;
  return utf8::Next(token, at);
}

uint32_t LastCharacter(absl::string_view token) {
  size_t at = utf8::Previous(token, token.size());
  return utf8::Next(token, at);
}

}  // namespace

absl::StatusOr<Bpe> Bpe::Make(const BpeParts& parts) {
  Bpe bpe;
  bpe.ids_.reserve(parts.vocabulary.size());
  for (const auto& [token, id] : parts.vocabulary) {
    if (id < 0) return absl::InvalidArgumentError(absl::StrCat("token '", token, "' has the id ", id));
    bpe.ids_[token] = id;
    bpe.max_id_ = std::max(bpe.max_id_, id);
  }
  bpe.tokens_.reserve(bpe.ids_.size());
  for (const auto& [token, id] : bpe.ids_) {
    const auto [at, is_new] = bpe.tokens_.emplace(id, token);
    if (!is_new) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens '", token, "' and '", at->second, "' have the same id, ", id));
    }
  }
  bpe.unknown_ = parts.unknown;
  if (!parts.unknown.empty()) bpe.unknown_id_ = bpe.IdOf(parts.unknown);
  bpe.subword_prefix_ = parts.subword_prefix;
  bpe.word_suffix_ = parts.word_suffix;
  bpe.fuse_unknown_ = parts.fuse_unknown;
  bpe.byte_fallback_ = parts.byte_fallback;
  bpe.ignore_merges_ = parts.ignore_merges;
  RETURN_IF_ERROR(bpe.AddMerges(parts));
  bpe.PrepareBytes();
  bpe.PrepareJoins(parts);
  return bpe;
}

absl::Status Bpe::AddMerges(const BpeParts& parts) {
  if (parts.merges.size() > UINT32_MAX - 1) return absl::InvalidArgumentError("there are more than 2^32 merges");
  merges_.reserve(parts.merges.size());
  for (size_t rank = 0; rank < parts.merges.size(); ++rank) {
    const auto& [left, right] = parts.merges[rank];
    const int32_t left_id = IdOf(left), right_id = IdOf(right);
    const absl::string_view joined = absl::string_view(right).size() >= subword_prefix_.size()
                                         ? absl::string_view(right).substr(subword_prefix_.size())
                                         : absl::string_view();
    const int32_t made = IdOf(absl::StrCat(left, joined));
    if (left_id < 0 || right_id < 0 || made < 0) {
      const std::string missing = left_id < 0 ? left : right_id < 0 ? right : absl::StrCat(left, joined);
      return absl::InvalidArgumentError(absl::StrCat("merge ", rank + 1, " ('", left, "', '", right,
                                                     "') needs the token '", missing,
                                                     "', which is not in the vocabulary"));
    }
    merges_[Pair(left_id, right_id)] = {static_cast<uint32_t>(rank), made};  // the last of equal pairs counts
  }
  return absl::OkStatus();
}

void Bpe::PrepareBytes() {
  byte_fallback_ids_.assign(256, -1);
  for (int byte = 0; byte < 256; ++byte) byte_fallback_ids_[byte] = IdOf(absl::StrFormat("<0x%02X>", byte));
  if (!subword_prefix_.empty() || !word_suffix_.empty()) return;
  for (int byte = 0; byte < 256; ++byte) {
    const int32_t id = IdOf(ByteLetter(static_cast<uint8_t>(byte)));
    if (id < 0) return byte_ids_.clear();
    byte_ids_.push_back(id);
  }
  if (!ignore_merges_) return;
  std::string bytes;
  for (const auto& [token, id] : ids_) {
    if (FromByteLetters(token, bytes)) ids_of_bytes_[bytes] = id;
  }
}

void Bpe::PrepareJoins(const BpeParts& parts) {
  characters_.assign(kBasicPlane, -1);
  for (const auto& [token, id] : ids_) {
    if (token.empty() || utf8::Length(static_cast<unsigned char>(token[0])) != token.size()) continue;
    if (const uint32_t code = FirstCharacter(token); code < kBasicPlane) characters_[code] = id;
  }
  if (!subword_prefix_.empty() || !word_suffix_.empty()) return;
  // The token of a byte (<0x0A>) and the unknown token are one symbol each. If a longer token was merged from them, the
  // first and the last character of its text do not show with which symbols it begins and ends.
  const auto hides_symbol = [this](const std::string& token) {
    return (byte_fallback_ && token.size() > 6 && absl::StrContains(token, "<0x")) ||
           (!unknown_.empty() && token.size() > unknown_.size() && absl::StrContains(token, unknown_));
  };
  for (const auto& [left, right] : parts.merges) {
    if (hides_symbol(left) || hides_symbol(right)) return;
    // A side may also be one symbol as a whole: a byte, or the unknown token.
    const int32_t ends[] = {left.empty() ? -1 : IdOfCharacter(LastCharacter(left)), IdOf(left)};
    const int32_t begins[] = {right.empty() ? -1 : IdOfCharacter(FirstCharacter(right)), IdOf(right)};
    for (const int32_t end : ends) {
      for (const int32_t begin : begins) joins_.insert(Pair(end, begin));
    }
  }
  joins_known_ = true;
}

absl::string_view Bpe::TokenOf(int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? absl::string_view() : found->second;
}

int32_t Bpe::IdOf(absl::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

int32_t Bpe::IdOfCharacter(uint32_t code) const {
  if (code < kBasicPlane) return characters_[code];
  std::string token;
  utf8::Append(code, token);
  return IdOf(token);
}

bool Bpe::NothingJoinsAfter(uint32_t code) const {
  if (!joins_known_) return false;
  std::string text;
  utf8::Append(code, text);
  std::vector<int32_t> symbols = {IdOfCharacter(code)};
  if (symbols[0] < 0) {
    symbols.clear();
    // The unknown token may be fused with the unknown token of the next character, or be appended after that character.
    if (!byte_fallback_ || !ByteTokens(text, symbols)) return false;
  }
  if (byte_fallback_ && std::count(byte_fallback_ids_.begin(), byte_fallback_ids_.end(), -1) > 0) return false;
  const auto left = static_cast<uint64_t>(static_cast<uint32_t>(symbols.back()));
  return std::none_of(joins_.begin(), joins_.end(), [left](uint64_t pair) { return pair >> 32 == left; });
}

bool Bpe::SizeIsAllowed(size_t size, Scratch& scratch) const {
  if (size <= limits::kTokenizerWordBytes) return true;
  scratch.status = absl::ResourceExhaustedError(
      absl::StrCat("the text has ", size, " bytes or characters in a row in which no word ends; expected at most ",
                   limits::kTokenizerWordBytes, ": split it into documents"));
  return false;
}

void Bpe::EncodeBytes(absl::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (byte_ids_.empty()) return EncodeText(ToByteLetters(word), scratch, ids);
  const bool is_short = word.size() <= scratch.words.kMaxBytes;
  const uint64_t hash = is_short ? scratch.words.Hash(word) : 0;
  if (is_short && scratch.words.Find(word, hash, ids)) return;
  if (!scratch.status.ok() || !SizeIsAllowed(word.size(), scratch)) return;
  const size_t begin = ids.size();
  const auto whole = ignore_merges_ ? ids_of_bytes_.find(word) : ids_of_bytes_.end();
  if (whole != ids_of_bytes_.end()) {
    ids.push_back(whole->second);
  } else {
    scratch.ids.clear();
    for (const char c : word) scratch.ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
    EncodeSymbols(absl::MakeSpan(scratch.ids), scratch, ids);
  }
  if (is_short) scratch.words.Insert(word, hash, absl::MakeConstSpan(ids).subspan(begin));
}

void Bpe::EncodeText(absl::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (!scratch.status.ok()) return;
  if (ignore_merges_) {
    if (const int32_t id = IdOf(word); id >= 0) return ids.push_back(id);
  }
  Symbolize(word, scratch);
  const absl::Span<int32_t> symbols = absl::MakeSpan(scratch.ids);
  for (size_t begin = 0; begin < symbols.size();) {
    size_t end = begin + 1;
    while (end < symbols.size() && (!joins_known_ || joins_.contains(Pair(symbols[end - 1], symbols[end])))) ++end;
    const absl::Span<int32_t> part = symbols.subspan(begin, end - begin);
    begin = end;
    if (part.size() == 1) {
      ids.push_back(part[0]);
      continue;
    }
    const absl::string_view key(reinterpret_cast<const char*>(part.data()), part.size() * sizeof(int32_t));
    const bool is_short = key.size() <= scratch.symbols.kMaxBytes;
    const uint64_t hash = is_short ? scratch.symbols.Hash(key) : 0;
    if (is_short && scratch.symbols.Find(key, hash, ids)) continue;
    if (!SizeIsAllowed(part.size(), scratch)) return;
    const size_t before = ids.size();
    const std::string kept(is_short ? key : absl::string_view());  // merging changes the symbols
    EncodeSymbols(part, scratch, ids);
    if (is_short) scratch.symbols.Insert(kept, hash, absl::MakeConstSpan(ids).subspan(before));
  }
}

bool Bpe::ByteTokens(absl::string_view text, std::vector<int32_t>& ids) const {
  const size_t begin = ids.size();
  for (const char c : text) {
    const int32_t id = byte_fallback_ids_[static_cast<uint8_t>(c)];
    if (id < 0) {
      ids.resize(begin);
      return false;
    }
    ids.push_back(id);
  }
  return true;
}

void Bpe::Symbolize(absl::string_view word, Scratch& scratch) const {
  scratch.ids.clear();
  const bool decorated = !subword_prefix_.empty() || !word_suffix_.empty();
  // As in the library, the unknown token is appended when the next known character or the end of the word is reached;
  // the tokens of a character that falls back to bytes may come before the unknown token.
  bool unknown_waits = false;
  std::string text;
  for (size_t at = 0; at < word.size();) {
    const size_t begin = at;
    const uint32_t code = utf8::Next(word, at);
    absl::string_view symbol = word.substr(begin, at - begin);
    if (decorated) {
      text = absl::StrCat(begin == 0 ? "" : subword_prefix_, symbol, at == word.size() ? word_suffix_ : "");
      symbol = text;
    }
    const int32_t id = decorated ? IdOf(symbol) : IdOfCharacter(code);
    if (id >= 0) {
      if (unknown_waits) scratch.ids.push_back(unknown_id_);
      unknown_waits = false;
      scratch.ids.push_back(id);
      continue;
    }
    if (byte_fallback_ && ByteTokens(symbol, scratch.ids)) continue;
    if (unknown_.empty()) continue;
    if (unknown_id_ < 0) {
      scratch.status = absl::InvalidArgumentError(
          absl::StrCat("the text has a character that is not in the vocabulary (", symbol,
                       "), and neither is the token for unknown characters, '", unknown_, "'"));
      return;
    }
    if (unknown_waits && !fuse_unknown_) scratch.ids.push_back(unknown_id_);
    unknown_waits = true;
  }
  if (unknown_waits) scratch.ids.push_back(unknown_id_);
}

}  // namespace trainyard
