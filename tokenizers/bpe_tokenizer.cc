#include "tokenizers/bpe_tokenizer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "tokenizers/unicode.h"
#include "tokenizers/utf8.h"

namespace trainyard {
namespace {

constexpr uint32_t kNewlineLetter = 0x10A;  // stands for the newline in byte-level BPE

bool IsSpace(absl::string_view text, size_t at) {
  return (unicode::Classes()[utf8::Next(text, at)] & unicode::kSpace) != 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BpeTokenizer>> BpeTokenizer::Make(BpeTokenizerParts parts, Bpe model) {
  std::unique_ptr<BpeTokenizer> made(new BpeTokenizer(std::move(parts), std::move(model)));
  for (const bool special : {true, false}) {  // if two tokens have the same text, the special one is found
    for (const AddedToken& token : made->parts_.added) {
      if (token.special != special) continue;
      made->added_[token.id] = &token;
      made->added_ids_.emplace(token.content, token.id);
      if (!token.normalized) {
        made->in_text_.Add(token.content, token);
        continue;
      }
      ASSIGN_OR_RETURN(const std::string normalized, made->parts_.normalizer.Apply(token.content, false));
      made->in_normalized_.Add(normalized, token);
    }
  }
  made->cuts_at_lines_ = made->LinesMayBeCut();
  return made;
}

bool BpeTokenizer::LinesMayBeCut() const {
  if (!parts_.normalizer.WorksByLines()) return false;
  const bool words_stay =
      !model_.ignores_merges() &&
      model_.NothingJoinsAfter(parts_.pre_tokenizer.is_byte_level() ? kNewlineLetter : uint32_t{'\n'});
  if (!parts_.pre_tokenizer.WorksByLines(words_stay)) return false;
  return std::none_of(parts_.added.begin(), parts_.added.end(),
                      [](const AddedToken& token) { return token.lstrip || absl::StrContains(token.content, "\n"); });
}

absl::Status BpeTokenizer::Append(absl::string_view text, const EncodeOptions& options,
                                  std::vector<int32_t>& ids) const {
  if (text.size() > limits::kTokenizerTextBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("a text has ", text.size(), " bytes: expected at most ",
                                                     limits::kTokenizerTextBytes, "; split it into documents"));
  }
  if (const size_t valid = utf8::ValidPrefix(text); valid < text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text is not valid UTF-8 at byte ", valid, "; convert it to UTF-8"));
  }
  const size_t begin = ids.size();
  std::unique_ptr<Bpe::Scratch> scratch = Borrow();
  if (options.special_tokens) ids.insert(ids.end(), parts_.before.begin(), parts_.before.end());
  in_text_.Cut(text, [&](absl::string_view part, int32_t id) {
    if (id >= 0) return ids.push_back(id);
    EncodeSection(part, part.data() == text.data(), options.continues, *scratch, ids);
  });
  if (options.special_tokens) ids.insert(ids.end(), parts_.after.begin(), parts_.after.end());
  absl::Status status = scratch->status;
  Return(std::move(scratch));
  if (!status.ok()) ids.resize(begin);
  return status;
}

void BpeTokenizer::EncodeSection(absl::string_view text, bool is_start, bool continues, Bpe::Scratch& scratch,
                                 std::vector<int32_t>& ids) const {
  if (!scratch.status.ok()) return;
  std::string normalized;
  if (!parts_.normalizer.is_empty()) {
    absl::StatusOr<std::string> applied = parts_.normalizer.Apply(text, continues && is_start);
    if (!applied.ok()) {
      scratch.status = applied.status();
      return;
    }
    normalized = *std::move(applied);
    text = normalized;
  }
  in_normalized_.Cut(text, [&](absl::string_view part, int32_t id) {
    if (id >= 0) return ids.push_back(id);
    EncodePiece({part, is_start && part.data() == text.data()}, continues, scratch, ids);
  });
}

void BpeTokenizer::EncodePiece(PreTokenizer::Piece piece, bool continues, Bpe::Scratch& scratch,
                               std::vector<int32_t>& ids) const {
  const bool bytes = parts_.pre_tokenizer.is_byte_level();
  scratch.status.Update(parts_.pre_tokenizer.Split(piece, continues, [&](absl::string_view word) {
    if (bytes) {
      model_.EncodeBytes(word, scratch, ids);
    } else {
      model_.EncodeText(word, scratch, ids);
    }
  }));
}

std::unique_ptr<Bpe::Scratch> BpeTokenizer::Borrow() const {
  absl::MutexLock lock(&mu_);
  if (free_.empty()) return std::make_unique<Bpe::Scratch>();
  std::unique_ptr<Bpe::Scratch> scratch = std::move(free_.back());
  free_.pop_back();
  return scratch;
}

void BpeTokenizer::Return(std::unique_ptr<Bpe::Scratch> scratch) const {
  scratch->status = absl::OkStatus();
  scratch->Trim();
  absl::MutexLock lock(&mu_);
  free_.push_back(std::move(scratch));
}

std::string BpeTokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    const auto added = added_.find(id);
    if (added != added_.end() && skip_special && added->second->special) continue;
    std::string token = TokenOf(id);
    if (!token.empty()) tokens.push_back(std::move(token));
  }
  return parts_.decoder.Decode(std::move(tokens));
}

int64_t BpeTokenizer::vocabulary() const {
  int32_t max_id = model_.max_id();
  for (const AddedToken& token : parts_.added) max_id = std::max(max_id, token.id);
  return int64_t{max_id} + 1;
}

int32_t BpeTokenizer::IdOf(absl::string_view token) const {
  const auto added = added_ids_.find(token);
  return added != added_ids_.end() ? added->second : model_.IdOf(token);
}

std::string BpeTokenizer::TokenOf(int32_t id) const {
  const auto added = added_.find(id);
  return added != added_.end() ? added->second->content : std::string(model_.TokenOf(id));
}

size_t BpeTokenizer::NextSafeCut(absl::string_view text, size_t from) const {
  if (!cuts_at_lines_) return text.size();
  for (size_t at = from;; ++at) {
    at = text.find('\n', at);
    if (at == absl::string_view::npos || at + 1 >= text.size()) return text.size();
    if (at > 0 && !IsSpace(text, utf8::Previous(text, at)) && !IsSpace(text, at + 1)) return at + 1;
  }
}

}  // namespace trainyard
