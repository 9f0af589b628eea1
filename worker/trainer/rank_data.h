// The data of a rank, from the files to batches, in this order:
//
//   OpenData       before the ranks meet: finds the files and reports what is wrong with them
//   TokenizeData   all ranks together: builds or opens the token caches, unless samples are made of bytes
//   AgreeOnData    all ranks together: checks that all see the same number of samples
//
// Used by the thread of the training loop.
#pragma once

#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/status.h"
#include "worker/collectives/communicator.h"
#include "worker/data/batches.h"
#include "worker/data/corpus.h"
#include "worker/data/pieces.h"
#include "worker/data/records.h"
#include "worker/data/text_encoder.h"
#include "worker/data/token_files.h"
#include "worker/link/config.h"
#include "worker/link/link.h"

namespace trainyard {

enum class DataForm { kText, kJsonl, kTokens, kCsv };

// How the files become tokens.
struct TokenPlan {
  DataForm form = DataForm::kText;
  RecordRules rules;
  std::shared_ptr<const TextEncoder> encoder;  // null: the files hold tokens
  std::vector<DataPiece> pieces;
  std::vector<TokenFile> token_files;  // of kTokens: the tokens of each file

  // Chunks are read in place, instead of from a cache.
  bool in_place() const { return form == DataForm::kTokens; }
};

// Files that become samples by the same rules: the training data, or the held-out files. Members are destroyed from
// last to first: each uses only those above it.
struct DataSet {
  std::string key;                 // of the job: train.data.text
  std::vector<std::string> paths;  // its value
  std::unique_ptr<Corpus> corpus;
  std::unique_ptr<TokenPlan> plan;                     // null: one token per byte, without a cache
  std::vector<std::unique_ptr<SampleSource>> sources;  // one for each group of the corpus

  // "train.data.text", or with several sources "train.data.text: /data/a".
  std::string NameOf(size_t source) const;
};

struct RankData {
  DataSet train;
  DataSet held_out;  // without a corpus: none
  std::unique_ptr<TrainingData> training;
  std::unique_ptr<EvaluationData> evaluation;  // null: the job does not evaluate
};

// Where documents begin if each file is one: the sizes of the files, in their order.
std::string DocumentsText(const Corpus& corpus);

// Whether a part of the training data is for evaluation.
bool EvaluatesPart(const TrainConfig& config);
// The number of tokens of a sample.
int64_t SampleLength(const TrainConfig& config);

// Possible errors: InvalidArgument, naming the keys, the host and the problems.
absl::Status OpenData(const StartOrder& order, RankData& data, std::ostream& log);

// Collective. Reports its progress in the log of rank 0. Possible errors: InvalidArgument, the same on all ranks, which
// lists lines that cannot be used, or says that the hosts have different files; the errors of the file system on the
// ranks where they occur, and Aborted on the others; those of a Collective.
absl::Status TokenizeData(const StartOrder& order, Link& link, Communicator& world, RankData& data, std::ostream& log);

// Collective. Possible errors: InvalidArgument, the same on all ranks; those of a Collective.
absl::Status AgreeOnData(const StartOrder& order, Communicator& world, RankData& data, std::ostream& log);

}  // namespace trainyard
