// The data of a rank, from the files to batches, in this order:
//
//   OpenData       before the ranks meet: finds the files and reports what is wrong with them
//   TokenizeData   all ranks together: builds or opens the token caches; checks files that hold tokens, which need no
//                  cache; if samples are made of bytes, compares only the files of ranks that divide a model
//   AgreeOnData    all ranks together: checks that all see the same number of samples, and makes the batches of them
//
// Used by the thread of the training loop.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/collectives/communicator.h"
#include "worker/data/batches.h"
#include "worker/data/corpus.h"
#include "worker/data/data_check.h"
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

// The token cache of a set.
struct TokenCacheUse {
  std::string folder;      // empty: tokens are read in place
  bool is_reused = false;  // it was complete before
  int64_t num_chunks = 0;
  int64_t num_tokens = 0;
  int64_t num_samples = 0;
};

// Files that become samples by the same rules: the training data, or the held-out files. The order of the members
// matters: each uses only those above it, and is destroyed before them.
struct DataSet {
  std::string key;                 // of the job: train.data.text
  std::vector<std::string> paths;  // the value of that key
  // Shared with the thread that describes the data in checkpoints, which may outlive the rank (commit_thread.h).
  std::shared_ptr<Corpus> corpus;
  std::unique_ptr<TokenPlan> plan;                     // null: samples are made of bytes or CSV rows, without a cache
  std::vector<std::unique_ptr<SampleSource>> sources;  // one for each group of the corpus
  TokenCacheUse cache;                                 // with a plan, after TokenizeData

  // "train.data.text", or with several sources "train.data.text: /data/a".
  std::string NameOf(size_t source) const;
};

struct RankData {
  DataSet train;
  DataSet held_out;  // its corpus is null if the job names no held-out files
  std::unique_ptr<TrainingData> training;
  // The number of training samples of each source, for checkpoints; empty if all hosts must have the same data.
  std::vector<int64_t> recorded_samples;
  std::unique_ptr<EvaluationData> evaluation;  // null: the job does not evaluate
  std::string evaluation_hash;                 // the same on all ranks
  DataOfCheckpoint checkpoint;                 // on rank 0, if a checkpoint was chosen
};

// The sizes of the files in their order, as a text to compare or hash. If each file is a document, equal texts mean
// that documents begin at the same positions.
std::string DocumentsText(const Corpus& corpus);

// Whether a part of the training data is for evaluation.
bool EvaluatesPart(const TrainConfig& config);
// Whether ranks compute parts of the same samples, as stages or tensor ranks, so that their files must be the same.
bool DividesModel(const TrainConfig& config);
// The number of tokens of a sample.
int64_t SampleLength(const TrainConfig& config);

// Possible errors: InvalidArgument, naming the keys, the host and the problems; other errors of opening the files.
absl::Status OpenData(const StartOrder& order, RankData& data, std::ostream& log);

struct TokenizeOptions {
  Link* link = nullptr;  // where the phase is reported; null: nowhere
  // Pieces that are tokenized at the same time. Must be the same on all ranks.
  int threads = 1;
  // Called between rounds of `threads` pieces; true ends the build with Cancelled, and the chunks that exist stay.
  // Null: never.
  std::function<bool()> must_leave = nullptr;
};

// Collective. Reports its progress in the log of rank 0. Possible errors: InvalidArgument, the same on all ranks, which
// lists lines that cannot be used, or says that the ranks have different files (RefuseDataOrHosts); the errors of the
// file system, and Unknown if a file was changed while it was read, on the ranks where they occur, and Aborted on the
// others; those of a Collective.
absl::Status TokenizeData(const StartOrder& order, const TokenizeOptions& options, Communicator& world, RankData& data,
                          std::ostream& log);

// Collective. Possible errors: InvalidArgument, the same on all ranks, and those of RefuseDataOrHosts.
absl::Status AgreeOnData(const StartOrder& order, Communicator& world, Link& link, RankData& data, std::ostream& log);

// Local, after AgreeOnData. `before` is ManifestData::samples of the checkpoint from which the run resumes. The order
// of the samples depends on these numbers, and a run that resumes on other hosts may find others. If there are at least
// as many samples as before, the run continues with the first ones of them, in the same order. All ranks decide alike.
// Possible errors: if there are fewer, FailedPrecondition on the ranks that have fewer (IsCheckpointMissing holds for
// it if the job restarts automatically, because another host may have them) and Unavailable on the others.
absl::Status ContinueOrder(const StartOrder& order, const std::vector<int64_t>& before, RankData& data,
                           std::ostream& log);

}  // namespace trainyard
