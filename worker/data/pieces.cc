#include "worker/data/pieces.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/escape.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

// The position of the first newline at or after `from`, or the end of the text.
size_t EndOfLine(absl::string_view text, size_t from) { return std::min(text.find('\n', from), text.size()); }

void AddProblem(size_t file, int64_t offset, absl::string_view reason, TokenizedPiece& result) {
  ++result.num_problems;
  if (result.problems.size() >= kProblemsKept) return;
  result.problems.push_back({.file = static_cast<int64_t>(file), .offset = offset, .reason = std::string(reason)});
}

// A safe cut at or after `from`, or the end. Looks at windows of valid UTF-8, because the text has not been checked.
size_t SafeCut(absl::string_view text, size_t from, const TextEncoder& encoder) {
  constexpr size_t kWindow = 1 << 16;
  constexpr size_t kNeighbours = 8;  // bytes on both sides of a cut that may matter
  while (from < text.size()) {
    while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
    absl::string_view window = text.substr(from, kWindow);
    const size_t bad = FindInvalidUtf8(window);
    if (bad != absl::string_view::npos) window = window.substr(0, bad);
    const size_t cut = window.size() <= kNeighbours ? window.size() : encoder.NextCut(window, kNeighbours);
    if (cut < window.size()) return from + cut;
    // The last bytes of this window are the neighbours of a cut in the next window.
    from += std::max<size_t>(window.size(), kNeighbours + 1) - kNeighbours;
  }
  return text.size();
}

}  // namespace

std::string ProblemSentence(const Corpus& corpus, const DataProblem& problem) {
  const size_t file = static_cast<size_t>(problem.file);
  if (!problem.has_lines) return absl::StrCat(EscapeText(corpus.files()[file].path), ": ", problem.reason);
  const absl::string_view before = corpus.ContentsOf(file).substr(0, static_cast<size_t>(problem.offset));
  return absl::StrCat(EscapeText(corpus.files()[file].path), ": line ",
                      1 + std::count(before.begin(), before.end(), '\n'), ": ", problem.reason);
}

std::vector<DataPiece> CutAtLines(const Corpus& corpus, int64_t piece_bytes) {
  std::vector<DataPiece> pieces;
  for (size_t file = 0; file < corpus.files().size(); ++file) {
    const absl::string_view text = corpus.ContentsOf(file);
    size_t begin = 0;
    while (begin < text.size()) {
      const size_t last = begin + static_cast<size_t>(piece_bytes) - 1;
      const size_t end = last >= text.size() ? text.size() : std::min(EndOfLine(text, last) + 1, text.size());
      pieces.push_back({.file = file, .begin = static_cast<int64_t>(begin), .end = static_cast<int64_t>(end)});
      begin = end;
    }
  }
  return pieces;
}

std::vector<DataPiece> CutText(const Corpus& corpus, const TextEncoder& encoder, int64_t piece_bytes) {
  std::vector<DataPiece> pieces;
  for (size_t file = 0; file < corpus.files().size(); ++file) {
    const absl::string_view text = corpus.ContentsOf(file);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = SafeCut(text, begin + static_cast<size_t>(piece_bytes), encoder);
      pieces.push_back({.file = file, .begin = static_cast<int64_t>(begin), .end = static_cast<int64_t>(end)});
      begin = end;
    }
  }
  return pieces;
}

TokenizedPiece TokenizeLines(const Corpus& corpus, const DataPiece& piece, const RecordRules& rules,
                             const TextEncoder* encoder) {
  TokenizedPiece result;
  TokenChunkWriter writer(rules.vocabulary, rules.chunk_kind());
  const absl::string_view text = corpus.ContentsOf(piece.file).substr(0, static_cast<size_t>(piece.end));
  for (size_t begin = static_cast<size_t>(piece.begin); begin < text.size();) {
    const size_t end = EndOfLine(text, begin);
    const absl::string_view line = text.substr(begin, end - begin);
    if (!absl::StripAsciiWhitespace(line).empty()) {
      const absl::Status added = AddRecord(line, rules, encoder, writer);
      if (!added.ok()) AddProblem(piece.file, static_cast<int64_t>(begin), added.message(), result);
    }
    begin = end + 1;
  }
  if (result.num_problems == 0) result.chunk = writer.Finish();
  return result;
}

TokenizedPiece TokenizeText(const Corpus& corpus, const DataPiece& piece, const RecordRules& rules,
                            const TextEncoder& encoder) {
  TokenizedPiece result;
  const absl::string_view file = corpus.ContentsOf(piece.file);
  const size_t begin = static_cast<size_t>(piece.begin), end = static_cast<size_t>(piece.end);
  const absl::string_view text = file.substr(begin, end - begin);
  if (const size_t bad = FindInvalidUtf8(text); bad != absl::string_view::npos) {
    const size_t at = begin + bad, line = at == 0 ? 0 : file.rfind('\n', at - 1) + 1;  // npos + 1 is 0
    AddProblem(piece.file, static_cast<int64_t>(line),
               absl::StrCat("byte ", at - line + 1, " of the line (offset ", at,
                            " in the file) is not UTF-8; convert the file to UTF-8, or train on bytes, without "
                            "train.data.tokenizer_path"),
               result);
    return result;
  }
  std::vector<int64_t> tokens;
  if (const absl::Status encoded = encoder.Append(text, /*begins=*/begin == 0, tokens); !encoded.ok()) {
    AddProblem(piece.file, piece.begin, encoded.message(), result);
    return result;
  }
  if (end == file.size()) encoder.End(tokens);
  TokenChunkWriter writer(rules.vocabulary, rules.chunk_kind());
  writer.AddTokens(tokens, /*begins=*/begin == 0);
  writer.CountRecord(tokens.empty());
  result.chunk = writer.Finish();
  return result;
}

std::vector<DataPiece> CutTokens(const Corpus& corpus, int64_t piece_bytes) {
  std::vector<DataPiece> pieces;
  for (size_t file = 0; file < corpus.files().size(); ++file) {
    const int64_t bytes = corpus.files()[file].num_bytes;
    for (int64_t begin = 0; begin < bytes; begin += piece_bytes) {
      pieces.push_back({.file = file, .begin = begin, .end = std::min(begin + piece_bytes, bytes)});
    }
  }
  return pieces;
}

TokenizedPiece CheckTokens(const DataPiece& piece, const TokenChunk& file, int64_t token_bytes, int64_t vocabulary) {
  constexpr int64_t kAtOnce = 1 << 14;
  TokenizedPiece result;
  std::vector<int64_t> tokens;
  const int64_t end = piece.end / token_bytes;
  for (int64_t first = piece.begin / token_bytes; first < end; first += kAtOnce) {
    tokens.resize(static_cast<size_t>(std::min(kAtOnce, end - first)));
    file.Read(first, absl::MakeSpan(tokens));
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] >= 0 && tokens[i] < vocabulary) continue;
      const int64_t position = first + static_cast<int64_t>(i);
      AddProblem(piece.file, position * token_bytes,
                 absl::StrCat("token ", tokens[i], " at position ", position, " is not from 0 to ", vocabulary - 1,
                              " (train.model.vocabulary is ", vocabulary, ")"),
                 result);
    }
  }
  for (DataProblem& problem : result.problems) problem.has_lines = false;
  return result;
}

absl::StatusOr<RecordFields> FieldsOfFirstRecord(const Corpus& corpus) {
  for (size_t file = 0; file < corpus.files().size(); ++file) {
    const absl::string_view text = corpus.ContentsOf(file);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = EndOfLine(text, begin);
      const absl::string_view line = text.substr(begin, end - begin);
      if (!absl::StripAsciiWhitespace(line).empty()) {
        absl::StatusOr<RecordFields> fields = FieldsOfRecord(line);
        if (fields.ok()) return fields;
        return absl::InvalidArgumentError(absl::StrCat(
            "train.data.jsonl: ", ProblemSentence(corpus, {.file = static_cast<int64_t>(file),
                                                           .offset = static_cast<int64_t>(begin),
                                                           .reason = std::string(fields.status().message())})));
      }
      begin = end + 1;
    }
  }
  return absl::InvalidArgumentError("train.data.jsonl: the files hold empty lines only");
}

}  // namespace trainyard
