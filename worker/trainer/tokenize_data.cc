// TokenizeData of rank_data.h.
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/files.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "worker/data/token_cache.h"
#include "worker/data/token_samples.h"
#include "worker/saving/sentences.h"
#include "worker/trainer/rank_data.h"

namespace trainyard {
namespace {

// The slowest rank may still be reading its files while the others wait for it.
constexpr absl::Duration kReadingLimit = absl::Hours(12);
constexpr absl::Duration kProgressInterval = absl::Seconds(5);
// Before the sentence of a problem, so that the problems of all ranks can be sorted.
constexpr size_t kOrderBytes = 32;

class Tokenizing {
 public:
  Tokenizing(const StartOrder& order, Communicator& world, RankData& data, std::ostream& log)
      : order_(order),
        world_(world),
        data_(data),
        plan_(*data.plan),
        log_(log),
        root_(TokenCacheRoot(order.config.checkpoint_dir)) {}

  absl::Status Run() {
    ASSIGN_OR_RETURN(const std::string key, AgreeOnKey());
    absl::StatusOr<TokenCacheFolder> folder = TokenCacheFolder::Make(JoinPath(root_, key));
    RETURN_IF_ERROR(ShareFailure(folder.status()));
    const size_t num_chunks = plan_.pieces.size();
    ASSIGN_OR_RETURN(const double complete, Sum(folder->IsComplete(num_chunks) ? 1 : 0));
    const bool is_reused = complete == order_.world_size;
    if (!is_reused) {
      RETURN_IF_ERROR(Build(*folder));
      RETURN_IF_ERROR(ShareFailure(order_.rank == 0 ? folder->PublishIndex(num_chunks) : absl::OkStatus()));
      RETURN_IF_ERROR(ShareFailure(CheckVisible(*folder)));
    }
    return Open(*folder, is_reused);
  }

 private:
  // Collective: the sum over all ranks.
  absl::StatusOr<double> Sum(double own) {
    at::Tensor sum = at::zeros({1}, at::kDouble);
    *sum.mutable_data_ptr<double>() = own;
    RETURN_IF_ERROR(world_.AllReduceSum(sum)->Wait()) << "while tokenizing the data";
    return *sum.const_data_ptr<double>();
  }

  // Collective: ends all ranks if one of them has failed. The one that failed returns its own status.
  absl::Status ShareFailure(const absl::Status& own) {
    ASSIGN_OR_RETURN(const double failed, Sum(own.ok() ? 0 : 1));
    if (failed == 0) return absl::OkStatus();
    const std::string sentence = own.ok() ? "" : RankSentence(order_, own.message());
    ASSIGN_OR_RETURN(const std::vector<std::string> sentences, ShareSentences(sentence, world_));
    if (!own.ok()) return own;
    return absl::AbortedError(absl::StrCat("another rank cannot tokenize the data: ", JoinFirst(sentences, 3, "; ")));
  }

  // Returns the hash of the files and of all rules, which is the same on all ranks.
  absl::StatusOr<std::string> AgreeOnKey() {
    const Corpus& corpus = *data_.corpus;
    const absl::Status made = MakeFolders(root_);
    std::string key = RecordedContent(root_, order_.host, corpus.identity());
    if (key.empty()) {
      key = corpus.Fingerprint().content_hash;
      // Without the record the next start reads the files again, which is only slower.
      if (made.ok()) RecordContent(root_, order_.host, corpus.identity(), key).IgnoreError();
    }
    RETURN_IF_ERROR(world_.MonitoredBarrier(kReadingLimit)) << "while the ranks read their data";
    RETURN_IF_ERROR(ShareFailure(made));
    // No key is empty, so there is one for each rank.
    ASSIGN_OR_RETURN(const std::vector<std::string> all, ShareSentences(key, world_), << "while comparing the data");
    std::vector<size_t> others;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank] != all[0]) others.push_back(rank);
    }
    if (others.empty()) return key;
    return absl::InvalidArgumentError(absl::StrCat(
        "train.data: the content of the files, or of the tokenizer, differs from that of rank 0 on ",
        others.size() == 1 ? "rank " : "ranks ", absl::StrJoin(others, ", "), "; give all hosts the same files"));
  }

  TokenizedPiece Tokenize(const DataPiece& piece) const {
    return plan_.is_text ? TokenizeText(*data_.corpus, piece, plan_.rules, *plan_.encoder)
                         : TokenizeLines(*data_.corpus, piece, plan_.rules, plan_.encoder.get());
  }

  // Deals the pieces to the ranks in order. All of them are read even if lines cannot be used, so that all problems are
  // known.
  absl::Status Build(const TokenCacheFolder& folder) {
    const size_t ranks = static_cast<size_t>(order_.world_size);
    Clock& clock = Clock::GetSteadyClock();
    const absl::Time began = clock.TimeNow();
    absl::Time reported = began;
    absl::Status failure;
    for (size_t first = 0; first < plan_.pieces.size(); first += ranks) {
      const size_t own = first + static_cast<size_t>(order_.rank);
      if (own < plan_.pieces.size() && !folder.HasChunk(own)) {
        TokenizedPiece piece = Tokenize(plan_.pieces[own]);
        num_problems_ += piece.num_problems;
        for (DataProblem& problem : piece.problems) {
          if (problems_.size() < kProblemsKept) problems_.push_back(std::move(problem));
        }
        if (piece.num_problems == 0) failure = folder.PublishChunk(own, piece.chunk);
      }
      RETURN_IF_ERROR(ShareFailure(failure));
      const absl::Time now = clock.TimeNow();
      if (order_.rank != 0 || now - reported < kProgressInterval) continue;
      reported = now;
      LogProgress(std::min(first + ranks, plan_.pieces.size()), now - began);
    }
    return ReportProblems();
  }

  void LogProgress(size_t pieces_done, absl::Duration time) {
    double bytes = 0;
    for (size_t i = 0; i < pieces_done; ++i) bytes += static_cast<double>(plan_.pieces[i].end - plan_.pieces[i].begin);
    const double total = static_cast<double>(data_.corpus->num_bytes());
    log_ << absl::StrFormat("tokens: %.0f %% of %.1f MB, %.1f MB/s", 100 * bytes / total, total / 1e6,
                            bytes / 1e6 / absl::ToDoubleSeconds(time))
         << std::endl;
  }

  // Collective: an error with the first problems of all ranks, in the order of files and lines.
  absl::Status ReportProblems() {
    ASSIGN_OR_RETURN(const double total, Sum(static_cast<double>(num_problems_)));
    if (total == 0) return absl::OkStatus();
    std::vector<std::string> all;
    for (size_t i = 0; i < kProblemsKept; ++i) {
      std::string sentence;
      if (i < problems_.size()) {
        sentence = absl::StrFormat("%015d:%015d:%s", problems_[i].file, problems_[i].offset,
                                   ProblemSentence(*data_.corpus, problems_[i]));
      }
      ASSIGN_OR_RETURN(const std::vector<std::string> shared, ShareSentences(sentence, world_));
      all.insert(all.end(), shared.begin(), shared.end());
    }
    std::sort(all.begin(), all.end());
    const size_t shown = std::min(all.size(), kProblemsKept);
    std::string text = absl::StrCat(plan_.is_text ? "train.data.text: " : "train.data.jsonl: ");
    for (size_t i = 0; i < shown; ++i) absl::StrAppend(&text, i == 0 ? "" : "\n  ", all[i].substr(kOrderBytes));
    absl::StrAppend(&text, AndMore(shown, static_cast<size_t>(total), "\n  ", "problem"));
    return absl::InvalidArgumentError(text);
  }

  absl::Status CheckVisible(const TokenCacheFolder& folder) {
    if (folder.IsComplete(plan_.pieces.size())) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("host ", order_.host, " does not see the tokens that all ranks have made in ", folder.path(),
                     "; checkpoint.dir must be in a folder that all hosts of the job share"));
  }

  absl::Status Open(const TokenCacheFolder& folder, bool is_reused) {
    const TrainConfig& config = order_.config;
    absl::StatusOr<std::unique_ptr<TokenSamples>> samples =
        TokenSamples::Open(folder, plan_.pieces.size(),
                           {.length = SampleLength(config),
                            .validation = config.data.validation,
                            .evaluates = config.evaluate_every > 0 && config.data.validation > 0,
                            .vocabulary = config.model.vocabulary});
    RETURN_IF_ERROR(ShareFailure(samples.status()));
    if (order_.rank == 0) LogSamples(**samples, folder.path(), is_reused);
    data_.samples = *std::move(samples);
    return absl::OkStatus();
  }

  void LogSamples(const TokenSamples& samples, const std::string& path, bool is_reused) {
    const TokenSummary& summary = samples.summary();
    log_ << absl::StrFormat(
                "data: %d files, %.1f MB, %d tokens%s; an epoch is %d samples of %d tokens",
                data_.corpus->files().size(), static_cast<double>(data_.corpus->num_bytes()) / 1e6, summary.num_tokens,
                summary.num_documents == 0
                    ? ""
                    : absl::StrCat(" in ", Plural(static_cast<uint64_t>(summary.num_documents), "document")),
                samples.num_samples(DataPart::kTraining), samples.length())
         << std::endl;
    log_ << "tokens: " << (is_reused ? "reused from " : "written to ") << path << std::endl;
    if (summary.num_empty_records > 0) {
      log_ << "warning: " << summary.num_empty_records << " of " << summary.num_records
           << " records have no token to train on and are left out" << std::endl;
    }
    if (summary.num_truncated > 0) {
      log_ << "warning: " << Plural(static_cast<uint64_t>(summary.num_truncated), "document is", "documents are")
           << " longer than a sample and cut; " << summary.num_without_loss
           << " of them have no token to train on in what is left and are left out" << std::endl;
    }
  }

  const StartOrder& order_;
  Communicator& world_;
  RankData& data_;
  const TokenPlan& plan_;
  std::ostream& log_;
  const std::string root_;
  std::vector<DataProblem> problems_;  // the first of this rank
  int64_t num_problems_ = 0;
};

}  // namespace

absl::Status TokenizeData(const StartOrder& order, Link& link, Communicator& world, RankData& data, std::ostream& log) {
  if (data.plan == nullptr) return absl::OkStatus();
  link.ReportProgress(Phase::kTokenize, 0);
  RETURN_IF_ERROR(Tokenizing(order, world, data, log).Run());
  link.ReportProgress(Phase::kJoining, 0);
  return absl::OkStatus();
}

}  // namespace trainyard
