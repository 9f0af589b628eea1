// Cuts the files of a job into pieces that are tokenized separately, and tokenizes one piece. The pieces depend only on
// the files, not on the number of ranks, so that any rank can tokenize any piece.
//
// Pure, and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/corpus.h"
#include "worker/data/records.h"
#include "worker/data/text_encoder.h"

namespace trainyard {

struct DataPiece {
  size_t file = 0;
  int64_t begin = 0;  // bytes of the file
  int64_t end = 0;
};

// About 16 MiB each: large enough for a file of the cache, small enough that a few ranks share the work of a small data
// set.
inline constexpr int64_t kDataPieceBytes = int64_t{16} << 20;

// Cuts after line ends: no line is in two pieces.
std::vector<DataPiece> CutAtLines(const Corpus& corpus, int64_t piece_bytes = kDataPieceBytes);
// Cuts only where separate tokenization of both parts gives the same tokens as tokenization of the whole file.
std::vector<DataPiece> CutText(const Corpus& corpus, const TextEncoder& encoder, int64_t piece_bytes = kDataPieceBytes);

// Why a line cannot be used.
struct DataProblem {
  int64_t file = 0;
  int64_t offset = 0;     // of the first byte of the line or, in a file of tokens, of the token
  std::string reason;     // "has no field 'text'; ..."
  bool has_lines = true;  // ProblemSentence adds the number of the line; false: `reason` says where the problem is
};

// "/data/a.jsonl: line 7: has no field 'text'; ...". Reads the file up to the problem, to count the lines.
std::string ProblemSentence(const Corpus& corpus, const DataProblem& problem);

// The bytes of the chunk that a piece becomes; none if there are problems.
struct TokenizedPiece {
  std::string chunk;
  std::vector<DataProblem> problems;  // the first kProblemsKept
  int64_t num_problems = 0;
};
inline constexpr size_t kProblemsKept = 10;

// Tokenizes the lines of a piece of JSONL. Empty lines are ignored.
TokenizedPiece TokenizeLines(const Corpus& corpus, const DataPiece& piece, const RecordRules& rules,
                             const TextEncoder* encoder);
// Tokenizes a piece of plain text. A file is a document.
TokenizedPiece TokenizeText(const Corpus& corpus, const DataPiece& piece, const RecordRules& rules,
                            const TextEncoder& encoder);

// Cuts files of tokens, which are checked in pieces. `piece_bytes` is a multiple of the size of every token type.
std::vector<DataPiece> CutTokens(const Corpus& corpus, int64_t piece_bytes = kDataPieceBytes);
// Checks that the tokens of a piece are in the vocabulary. The result has no chunk.
TokenizedPiece CheckTokens(const DataPiece& piece, const TokenChunk& file, int64_t token_bytes, int64_t vocabulary);

// Returns the fields of the first line that is not empty. Possible errors: InvalidArgument: that line is not a record
// (the message contains the file and the line), or all lines are empty.
absl::StatusOr<RecordFields> FieldsOfFirstRecord(const Corpus& corpus);

}  // namespace trainyard
