// Cuts the files of a job into pieces that are tokenised separately, and tokenises one piece. The pieces depend only on
// the files, not on the number of ranks, so that any rank can make any of them.
//
// Pure, and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/data/corpus.h"
#include "worker/data/records.h"
#include "worker/data/text_encoder.h"

namespace trainyard {

struct DataPiece {
  size_t file = 0;
  int64_t begin = 0;  // bytes of the file
  int64_t end = 0;
};

// About 16 MiB each: large enough to be a file, small enough that a few ranks share the work of a small data set.
inline constexpr int64_t kDataPieceBytes = int64_t{16} << 20;

// Cuts after line ends: no line is in two pieces.
std::vector<DataPiece> CutAtLines(const Corpus& corpus, int64_t piece_bytes = kDataPieceBytes);
// Does not cut: a piece is a file.
std::vector<DataPiece> CutAtFiles(const Corpus& corpus);

// Why a line cannot be used.
struct DataProblem {
  int64_t file = 0;
  int64_t offset = 0;  // of the line's first byte
  std::string reason;  // "has no field 'text'; ..."
};

// "/data/a.jsonl: line 7: has no field 'text'; ...". Counts the lines before it, which reads the file up to there.
std::string ProblemSentence(const Corpus& corpus, const DataProblem& problem);

// A piece as the bytes of a chunk; with problems there are none.
struct TokenisedPiece {
  std::string chunk;
  std::vector<DataProblem> problems;  // the first kProblemsKept
  int64_t num_problems = 0;
};
inline constexpr size_t kProblemsKept = 10;

// Tokenises the lines of a piece of JSONL. Empty lines are ignored.
TokenisedPiece TokeniseLines(const Corpus& corpus, const DataPiece& piece, const RecordRules& rules,
                             const TextEncoder* encoder);
// Tokenises a piece of plain text, which is a whole file: one document.
TokenisedPiece TokeniseText(const Corpus& corpus, const DataPiece& piece, const RecordRules& rules,
                            const TextEncoder& encoder);

// Returns the fields of the first line that is not empty. Possible errors: InvalidArgument, naming file and line.
absl::StatusOr<RecordFields> FieldsOfFirstRecord(const Corpus& corpus);

}  // namespace trainyard
