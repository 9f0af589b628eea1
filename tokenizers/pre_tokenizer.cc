#include "tokenizers/pre_tokenizer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/limits.h"
#include "tokenizers/utf8.h"

namespace trainyard {
namespace {

struct Part {
  absl::string_view text;
  bool is_match;
};

// REQUIRES: `right` begins where `left` ends.
absl::string_view JoinedViews(absl::string_view left, absl::string_view right) {
  return {left.data(), left.size() + right.size()};
}

}  // namespace

absl::Status PreTokenizer::Split(Piece piece, bool continues, Sink word) const {
  absl::Status status;
  Run(0, piece, continues, word, status);
  return status;
}

void PreTokenizer::Run(size_t index, Piece piece, bool continues, Sink word, absl::Status& status) const {
  if (piece.text.empty() || !status.ok()) return;
  if (index == steps_.size()) return word(piece.text);
  const Step& step = steps_[index];
  const auto next = [&](Piece part) { Run(index + 1, part, continues, word, status); };
  switch (step.kind) {
    case Kind::kByteLevel: {
      std::string prefixed;
      if (step.add_prefix_space && piece.text[0] != ' ' && !(continues && piece.is_start)) {
        prefixed = absl::StrCat(" ", piece.text);
        piece.text = prefixed;
      }
      if (!step.splits) return next(piece);
      status.Update(SplitByPattern(step, piece, next));
      return;
    }
    case Kind::kSplit:
      status.Update(SplitByPattern(step, piece, next));
      return;
    case Kind::kDigits:
      return SplitByClass(step, unicode::kNumeric, piece, next);
    case Kind::kPunctuation:
      return SplitByClass(step, unicode::kPunctuation, piece, next);
    case Kind::kWhitespaceSplit:
      return SplitByClass(step, unicode::kSpace, piece, next);
    case Kind::kWhitespace:
      return Whitespace(piece, next);
    case Kind::kMetaspace:
      return Metaspace(step, piece, continues, next);
  }
}

void PreTokenizer::Metaspace(const Step& step, Piece piece, bool continues, Pieces next) {
  std::string text = absl::StrReplaceAll(piece.text, {{" ", step.replacement}});
  const bool prepend = step.scheme == Scheme::kAlways || (step.scheme == Scheme::kFirst && piece.is_start);
  if (prepend && !(continues && piece.is_start) && !absl::StartsWith(text, step.replacement)) {
    text.insert(0, step.replacement);
  }
  if (!step.splits) return next({text, piece.is_start});
  bool is_start = piece.is_start;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(step.replacement, begin + 1), text.size());
    next({absl::string_view(text).substr(begin, end - begin), is_start});
    is_start = false;
    begin = end;
  }
}

absl::Status PreTokenizer::SplitByPattern(const Step& step, Piece piece, Pieces next) {
  const char* const begin = piece.text.data();
  const auto emit = [&](absl::string_view text) {
    if (!text.empty()) next({text, piece.is_start && text.data() == begin});
  };
  if (step.behavior == Behavior::kIsolated || step.behavior == Behavior::kRemoved) {
    return step.pattern.Parts(piece.text, [&](absl::string_view text, bool is_match) {
      if (step.behavior == Behavior::kIsolated || is_match == step.invert) emit(text);
    });
  }
  std::vector<Part> parts;
  absl::Status status = step.pattern.Parts(piece.text, [&](absl::string_view text, bool is_match) {
    parts.push_back({text, is_match != step.invert});
  });
  if (!status.ok()) return status;
  std::vector<absl::string_view> joined;
  bool previous = false;
  if (step.behavior == Behavior::kMergedWithNext) {
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (part->is_match && !previous && !joined.empty()) {
        joined.back() = JoinedViews(part->text, joined.back());
      } else {
        joined.push_back(part->text);
      }
      previous = part->is_match;
    }
    std::reverse(joined.begin(), joined.end());
  } else {
    const bool contiguous = step.behavior == Behavior::kContiguous;
    for (const Part& part : parts) {
      const bool join = contiguous ? part.is_match == previous : part.is_match && !previous;
      if (join && !joined.empty()) {
        joined.back() = JoinedViews(joined.back(), part.text);
      } else {
        joined.push_back(part.text);
      }
      previous = part.is_match;
    }
  }
  std::for_each(joined.begin(), joined.end(), emit);
  return absl::OkStatus();
}

void PreTokenizer::SplitByClass(const Step& step, uint16_t mask, Piece piece, Pieces next) {
  const uint16_t* const classes = unicode::Classes();
  const absl::string_view text = piece.text;
  // A match is one character of the class, or a run of them if the behavior is contiguous.
  size_t begin = 0, at = 0;
  bool is_match = false, follows_match = false;
  const auto emit = [&](size_t end) {
    if (end > begin) next({text.substr(begin, end - begin), piece.is_start && begin == 0});
    begin = end;
  };
  while (at < text.size()) {
    const size_t here = at;
    is_match = (classes[utf8::Next(text, at)] & mask) != 0;
    switch (step.behavior) {
      case Behavior::kRemoved:
        if (is_match) {
          emit(here);
          begin = at;
        }
        break;
      case Behavior::kIsolated:
        if (is_match || follows_match) emit(here);
        break;
      case Behavior::kContiguous:
        if (is_match != follows_match) emit(here);
        break;
      case Behavior::kMergedWithPrevious:
        if (follows_match) emit(here);
        break;
      case Behavior::kMergedWithNext:
        if (is_match) emit(here);
        break;
    }
    follows_match = is_match;
  }
  emit(text.size());
}

void PreTokenizer::Whitespace(Piece piece, Pieces next) {
  const uint16_t* const classes = unicode::Classes();
  const absl::string_view text = piece.text;
  constexpr uint16_t kMask = unicode::kWord | unicode::kSpace;
  size_t begin = 0;
  uint16_t kind = unicode::kSpace;  // of the part so far
  for (size_t at = 0; at <= text.size();) {
    const size_t here = at;
    uint16_t is = unicode::kSpace;
    if (at == text.size()) {
      ++at;
    } else {
      is = classes[utf8::Next(text, at)] & kMask;
    }
    if (is == kind && at <= text.size()) continue;
    if (kind != unicode::kSpace) next({text.substr(begin, here - begin), piece.is_start && begin == 0});
    begin = here;
    kind = is;
  }
}

bool PreTokenizer::WorksByLines(bool within_words) const {
  bool splits_lines = false;  // a step splits at least after a newline, whatever follows it
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kByteLevel:
        // After a step that splits, each piece gets a prefix, so a cut would add a prefix that the whole text does not
        // have.
        if (step.add_prefix_space && &step != steps_.data()) return false;
        splits_lines = splits_lines || step.splits;
        break;
      case Kind::kSplit:
        if (splits_lines) break;
        if (step.pattern.known() == KnownPattern::kNone || step.behavior != Behavior::kIsolated) return false;
        splits_lines = true;
        break;
      case Kind::kMetaspace:
        if (&step != steps_.data()) return false;
        break;
      case Kind::kWhitespace:
      case Kind::kWhitespaceSplit:
        splits_lines = true;
        break;
      case Kind::kDigits:
        break;
      case Kind::kPunctuation:
        if (step.behavior != Behavior::kIsolated && step.behavior != Behavior::kContiguous) return false;
        break;
    }
  }
  return splits_lines || within_words;
}

}  // namespace trainyard
