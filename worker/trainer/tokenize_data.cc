// Implements TokenizeData (rank_data.h).
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <future>

#include "absl/strings/numbers.h"
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
#include "worker/trainer/other_data.h"
#include "worker/trainer/rank_data.h"
#include "worker/trainer/run_folder.h"

namespace trainyard {
namespace {

// The slowest rank may still be reading its files while the others wait for it.
constexpr absl::Duration kReadingLimit = absl::Hours(12);
constexpr absl::Duration kProgressInterval = absl::Seconds(5);
// How long a network file system may take to show the finished cache on every host.
constexpr absl::Duration kVisiblePatience = absl::Seconds(10);
// The length of the prefix (file and offset) that the ranks add to each problem, so that all problems can be sorted.
constexpr size_t kOrderBytes = 32;

// Returns the ranks whose text differs from that of rank 0, as "rank 1" or "ranks 1, 2"; empty: all texts are equal.
std::string RanksWithOtherText(const std::vector<std::string>& all) {
  std::vector<size_t> others;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) others.push_back(rank);
  }
  if (others.empty()) return "";
  return absl::StrCat(others.size() == 1 ? "rank " : "ranks ", absl::StrJoin(others, ", "));
}

class Tokenizing {
 public:
  // `checkpoint`: see RefuseDataOrHosts; nothing for held-out files, which no checkpoint describes.
  Tokenizing(const StartOrder& order, const TokenizeOptions& options, Communicator& world, DataSet& data,
             const DataOfCheckpoint& checkpoint, bool is_held_out, std::ostream& log)
      : order_(order),
        options_(options),
        world_(world),
        data_(data),
        plan_(*data.plan),
        checkpoint_(checkpoint),
        is_held_out_(is_held_out),
        log_(log) {}

  absl::Status Run() {
    RETURN_IF_ERROR(AgreeOnRoot());
    ASSIGN_OR_RETURN(const std::string key, AgreeOnKey());
    absl::StatusOr<TokenCacheFolder> folder = TokenCacheFolder::Make(JoinPath(root_, key));
    RETURN_IF_ERROR(ShareFailure(folder.status()));
    // Files that are read in place leave no chunks: the index then says that all tokens have been checked.
    const size_t num_chunks = NumChunks();
    // The first generation always checks the chunks; later ones trust them, unless the cache is no longer complete.
    if (order_.generation == 1) RemoveDamaged(*folder, num_chunks);
    ASSIGN_OR_RETURN(const double complete, Sum(folder->IsComplete(num_chunks) ? 1 : 0));
    const bool is_reused = complete == order_.world_size;
    if (!is_reused) {
      if (order_.generation > 1) RemoveDamaged(*folder, num_chunks);
      RETURN_IF_ERROR(Build(*folder));
      RETURN_IF_ERROR(ShareFailure(builder_index_ == 0 ? folder->PublishIndex(num_chunks) : absl::OkStatus()));
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

  // Collective: returns an error on all ranks if one of them has failed. A rank that failed returns its own status.
  absl::Status ShareFailure(const absl::Status& own) {
    ASSIGN_OR_RETURN(const double failed, Sum(own.ok() ? 0 : 1));
    if (failed == 0) return absl::OkStatus();
    const std::string sentence = own.ok() ? "" : RankSentence(order_, own.message());
    ASSIGN_OR_RETURN(const std::vector<std::string> sentences, ShareSentences(sentence, world_));
    if (!own.ok()) return own;
    return absl::AbortedError(absl::StrCat("another rank cannot tokenize the data: ", JoinFirst(sentences, 3, "; ")));
  }

  // Rank 0 decides in which folder the caches are: next to the run folder or, if nothing can be written there, inside
  // of it. The other ranks do not call RootNextToRun, because its result may change once rank 0 has made the folder.
  absl::Status AgreeOnRoot() {
    const std::vector<std::string> roots = TokenCacheRoots(order_.config.checkpoint_dir);
    absl::Status failure;
    size_t chosen = 0;
    if (order_.rank == 0) {
      chosen = RootNextToRun(roots);
      failure = MakeCacheRoot(roots[chosen]);
      const size_t inside = roots.size() - 1;
      if (!failure.ok() && MakeCacheRoot(roots[inside]).ok()) {
        chosen = inside;
        failure = absl::OkStatus();
      }
    }
    RETURN_IF_ERROR(ShareFailure(failure));
    ASSIGN_OR_RETURN(const double decided, Sum(static_cast<double>(chosen)));
    root_ = roots[static_cast<size_t>(decided)];
    return absl::OkStatus();
  }

  // Removes damaged chunks, so that they are made again. The ranks with the same files divide the chunks among them.
  void RemoveDamaged(const TokenCacheFolder& folder, size_t num_chunks) {
    for (size_t chunk = builder_index_; chunk < num_chunks; chunk += num_builders_) {
      if (!folder.RemoveIfDamaged(chunk)) continue;
      log_ << "warning: " << folder.ChunkPath(chunk) << " was damaged and is made again" << std::endl;
    }
  }

  // Returns the hash of the files and of the rules that decide their tokens (Corpus::SetRules). It is the same on all
  // ranks, unless the job allows hosts to have different files (train.data.uneven: join).
  absl::StatusOr<std::string> AgreeOnKey() {
    const Corpus& corpus = *data_.corpus;
    absl::Status made = MakeCacheRoot(root_);
    std::string key = RecordedContent(root_, order_.host, corpus.identity());
    if (key.empty()) {
      key = corpus.Fingerprint().content_hash;
      // A file that was changed while it was read would have a key that belongs to no version of its content.
      made.Update(corpus.CheckUntouched());
      // Without the record the next start reads the files again, which is only slower.
      if (made.ok()) RecordContent(root_, order_.host, corpus.identity(), key).IgnoreError();
    }
    RETURN_IF_ERROR(world_.MonitoredBarrier(kReadingLimit)) << "while the ranks read their data";
    RETURN_IF_ERROR(ShareFailure(made));
    // No key is empty, so none is skipped: all[i] is the key of rank i.
    ASSIGN_OR_RETURN(const std::vector<std::string> all, ShareSentences(key, world_), << "while comparing the data");
    num_builders_ = builder_index_ = 0;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank] == key && rank < static_cast<size_t>(order_.rank)) ++builder_index_;
      if (all[rank] == key) ++num_builders_;
    }
    const std::string others = RanksWithOtherText(all);
    if (others.empty()) return key;
    const bool joins = order_.config.data.joins_uneven;
    // Every rank computes the numbers of targets of all ranks from its own samples, so different files may join only if
    // all samples have the same number of targets. Ranks that divide a model need the same samples in any case.
    const bool may_join =
        !plan_.rules.has_documents() && !plan_.rules.separate_documents && !DividesModel(order_.config);
    // The fields of JSONL may follow from the first line, so that only some of the ranks find documents.
    ASSIGN_OR_RETURN(const double refusing, Sum(joins && may_join ? 0 : 1));
    if (refusing == 0) {
      RETURN_IF_ERROR(CheckSameTokenizer());
      return key;
    }
    const absl::Status refusal = absl::InvalidArgumentError(absl::StrCat(
        data_.key, ": the content of the files, or of the tokenizer, differs from that of rank 0 on ", others,
        "; give all hosts the same files",
        joins ? " (train.data.uneven: join needs samples that all have the same number of targets, so it does not work "
                "with prompts, labels or separate_documents, nor with pipelines or tensor parallelism)"
              : ""));
    return RefuseDataOrHosts(
        order_, checkpoint_, [&key] { return key; }, world_, options_.link, refusal);
  }

  // Collective. Ranks with other files still need the same tokenizer, because they train the same model.
  absl::Status CheckSameTokenizer() {
    const std::string own = absl::StrCat("tokenizer ", plan_.encoder == nullptr ? "" : plan_.encoder->identity());
    ASSIGN_OR_RETURN(const std::vector<std::string> all, ShareSentences(own, world_),
                     << "while comparing the tokenizers");
    const std::string others = RanksWithOtherText(all);
    if (others.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(data_.key, ": the tokenizer differs from that of rank 0 on ", others,
                     "; give all hosts the same tokenizer (train.data.uneven: join allows other files of text only)"));
  }

  // Collective: the largest number of rounds that any rank needs for its pieces.
  absl::StatusOr<size_t> AgreeOnRounds() {
    const size_t per_round = num_builders_ * PiecesPerRound();
    const size_t own = (plan_.pieces.size() + per_round - 1) / per_round;
    ASSIGN_OR_RETURN(const std::vector<std::string> all, ShareSentences(absl::StrCat(own), world_));
    size_t rounds = 0;
    for (const std::string& text : all) {
      size_t number = 0;
      if (absl::SimpleAtoi(text, &number)) rounds = std::max(rounds, number);
    }
    return rounds;
  }

  size_t NumChunks() const { return plan_.in_place() ? 0 : plan_.pieces.size(); }

  TokenizedPiece Tokenize(const DataPiece& piece) const {
    if (plan_.in_place()) {
      const TokenFile& file = plan_.token_files[piece.file];
      return CheckTokens(piece, ChunkOf(*data_.corpus, piece.file, file, /*with_starts=*/false), BytesOf(file.type),
                         plan_.rules.vocabulary);
    }
    return plan_.form == DataForm::kText ? TokenizeText(*data_.corpus, piece, plan_.rules, *plan_.encoder)
                                         : TokenizeLines(*data_.corpus, piece, plan_.rules, plan_.encoder.get());
  }

  size_t PiecesPerRound() const { return static_cast<size_t>(std::max(1, options_.threads)); }

  struct Made {
    TokenizedPiece piece;  // without its chunk, which has been written
    absl::Status status;
  };

  Made Make(const TokenCacheFolder& folder, size_t piece) const {
    Made made;
    if (!plan_.in_place() && folder.HasChunk(piece)) return made;
    made.piece = Tokenize(plan_.pieces[piece]);
    // The key of the cache belongs to the content that the file had when it was opened.
    made.status = data_.corpus->CheckUntouched(plan_.pieces[piece].file);
    const bool may_publish = made.status.ok() && made.piece.num_problems == 0;
    if (may_publish && !plan_.in_place()) made.status = folder.PublishChunk(piece, made.piece.chunk);
    made.piece.chunk.clear();
    return made;
  }

  // Tokenizes this rank's pieces of a round, each on its own thread if there are several.
  absl::Status MakeRound(const TokenCacheFolder& folder, size_t round) {
    if (options_.must_leave != nullptr && options_.must_leave()) {
      return absl::CancelledError(absl::StrCat("interrupted; the chunks in ", folder.path(), " are kept"));
    }
    const std::launch policy = PiecesPerRound() == 1 ? std::launch::deferred : std::launch::async;
    const size_t first = (round * num_builders_ + builder_index_) * PiecesPerRound();
    std::vector<std::future<Made>> pieces;
    for (size_t piece = first; piece < std::min(first + PiecesPerRound(), plan_.pieces.size()); ++piece) {
      pieces.push_back(std::async(policy, [this, &folder, piece] { return Make(folder, piece); }));
    }
    absl::Status failure;
    for (std::future<Made>& piece : pieces) {
      Made made = piece.get();
      num_problems_ += made.piece.num_problems;
      for (DataProblem& problem : made.piece.problems) {
        if (problems_.size() < kProblemsKept) problems_.push_back(std::move(problem));
      }
      failure.Update(made.status);
    }
    return failure;
  }

  // Makes the missing chunks. The pieces are divided among the ranks in order. All pieces are read even if some lines
  // cannot be used, so that all problems are reported.
  absl::Status Build(const TokenCacheFolder& folder) {
    ASSIGN_OR_RETURN(const size_t rounds, AgreeOnRounds());
    Clock& clock = Clock::GetSteadyClock();
    const absl::Time began = clock.TimeNow();
    absl::Time reported = began;
    for (size_t round = 0; round < rounds; ++round) {
      RETURN_IF_ERROR(ShareFailure(MakeRound(folder, round)));
      const absl::Time now = clock.TimeNow();
      if (order_.rank != 0 || now - reported < kProgressInterval) continue;
      reported = now;
      LogProgress(std::min((round + 1) * num_builders_ * PiecesPerRound(), plan_.pieces.size()), now - began);
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
    std::string text = absl::StrCat(data_.key, ": ");
    for (size_t i = 0; i < shown; ++i) absl::StrAppend(&text, i == 0 ? "" : "\n  ", all[i].substr(kOrderBytes));
    absl::StrAppend(&text, AndMore(shown, static_cast<size_t>(total), "\n  ", "problem"));
    return absl::InvalidArgumentError(text);
  }

  absl::Status CheckVisible(const TokenCacheFolder& folder) {
    const auto is_visible = [&] {
      // NFS remembers for up to a minute that a file was missing. Opening the folder makes it ask the server again.
      SyncFolder(folder.path()).IgnoreError();
      return folder.IsComplete(NumChunks());
    };
    if (AwaitThat(is_visible, kVisiblePatience)) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("host ", order_.host, " does not see the tokens that all ranks have made in ", folder.path(),
                     "; checkpoint.dir must be in a folder that all hosts of the job share"));
  }

  // The chunks of a group of files.
  ChunkRange ChunksOf(const Corpus::Group& group) const {
    const auto is_of_earlier_file = [](const DataPiece& piece, size_t file) { return piece.file < file; };
    const auto first_chunk_of = [&](size_t file) {
      const auto at = std::lower_bound(plan_.pieces.begin(), plan_.pieces.end(), file, is_of_earlier_file);
      return static_cast<size_t>(at - plan_.pieces.begin());
    };
    return {.first = first_chunk_of(group.first_file), .end = first_chunk_of(group.end_file)};
  }

  absl::StatusOr<std::unique_ptr<TokenSamples>> OpenSource(const TokenCacheFolder& folder, size_t source) const {
    const Corpus& corpus = *data_.corpus;
    const Corpus::Group& group = corpus.groups()[source];
    if (!plan_.in_place()) return TokenSamples::Open(folder, ChunksOf(group), OptionsOf(source));
    std::vector<TokenChunk> chunks;
    for (size_t file = group.first_file; file < group.end_file; ++file) {
      chunks.push_back(ChunkOf(corpus, file, plan_.token_files[file], plan_.rules.separate_documents));
    }
    return TokenSamples::OfChunks(chunks, OptionsOf(source));
  }

  // Opens the samples of all sources, and reports all sources without samples in one error.
  absl::Status Open(const TokenCacheFolder& folder, bool is_reused) {
    std::vector<TokenSamples*> opened;
    absl::Status failure;
    int64_t to_evaluate = 0;
    for (size_t i = 0; i < data_.corpus->groups().size(); ++i) {
      absl::StatusOr<std::unique_ptr<TokenSamples>> samples = OpenSource(folder, i);
      if (!samples.ok()) {
        failure = failure.ok()
                      ? samples.status()
                      : absl::Status(failure.code(), absl::StrCat(failure.message(), "\n", samples.status().message()));
        continue;
      }
      to_evaluate += (*samples)->num_samples(DataPart::kEvaluation);
      opened.push_back(samples->get());
      data_.sources.push_back(*std::move(samples));
    }
    const bool is_blend = data_.corpus->groups().size() > 1;
    if (failure.ok() && is_blend && EvaluatesPart(order_.config) && to_evaluate == 0) {
      failure = absl::InvalidArgumentError(absl::StrCat(
          data_.key,
          ": no source has a sample for evaluation; provide more data, a larger train.data.validation, or do "
          "not evaluate"));
    }
    RETURN_IF_ERROR(ShareFailure(failure));
    Summarize(opened, folder.path(), is_reused);
    return absl::OkStatus();
  }

  TokenSamplesOptions OptionsOf(size_t source) const {
    const TrainConfig& config = order_.config;
    const size_t num_sources = data_.corpus->groups().size();
    TokenSamplesOptions options{.length = SampleLength(config),
                                .validation = config.data.held_out.empty() ? config.data.validation : 0,
                                .evaluates = EvaluatesPart(config) && num_sources == 1,
                                .vocabulary = config.model.vocabulary,
                                .separate_documents = config.data.separate_documents,
                                .name = data_.key};
    if (num_sources > 1) {
      options.name = absl::StrCat(data_.key, ": ", data_.paths[source]);
      options.trains = config.data.weights[source] > 0;
    }
    if (is_held_out_) options.validation = 1, options.trains = false, options.evaluates = true;
    return options;
  }

  void Summarize(const std::vector<TokenSamples*>& opened, const std::string& path, bool is_reused) {
    TokenSummary summary;
    int64_t num_samples = 0;
    for (const TokenSamples* samples : opened) {
      summary += samples->summary();
      num_samples += samples->num_samples(is_held_out_ ? DataPart::kEvaluation : DataPart::kTraining);
    }
    data_.cache = {.folder = plan_.in_place() ? "" : path,
                   .is_reused = is_reused,
                   .num_chunks = static_cast<int64_t>(NumChunks()),
                   .num_tokens = summary.num_tokens,
                   .num_samples = num_samples};
    if (order_.rank == 0) LogSamples(summary);
  }

  void LogSamples(const TokenSummary& summary) {
    log_ << absl::StrFormat(
                "%s: %d files, %.1f MB, %d tokens%s; ", is_held_out_ ? "held out" : "data",
                data_.corpus->files().size(), static_cast<double>(data_.corpus->num_bytes()) / 1e6, summary.num_tokens,
                summary.num_documents == 0
                    ? ""
                    : absl::StrCat(" in ", Plural(static_cast<uint64_t>(summary.num_documents), "document")))
         << absl::StrFormat("%s%d samples of %d tokens", is_held_out_ ? "" : "an epoch is ", data_.cache.num_samples,
                            SampleLength(order_.config))
         << std::endl;
    if (!plan_.in_place())
      log_ << "tokens: " << (data_.cache.is_reused ? "reused from " : "written to ") << data_.cache.folder << std::endl;
    if (summary.num_empty_records > 0) {
      log_ << "warning: " << summary.num_empty_records << " of " << summary.num_records
           << " records have no token to train on and are skipped" << std::endl;
    }
    if (summary.num_truncated > 0) {
      log_ << "warning: " << Plural(static_cast<uint64_t>(summary.num_truncated), "document is", "documents are")
           << " longer than a sample and cut at its length; " << summary.num_without_loss
           << " of them have no token to train on before the cut and are skipped" << std::endl;
    }
  }

  const StartOrder& order_;
  const TokenizeOptions& options_;
  Communicator& world_;
  DataSet& data_;
  const TokenPlan& plan_;
  const DataOfCheckpoint checkpoint_;
  const bool is_held_out_;
  std::ostream& log_;
  std::string root_;
  // Ranks with the same files build one cache together. Their number, and the index of this rank among them.
  size_t num_builders_ = 1, builder_index_ = 0;
  std::vector<DataProblem> problems_;  // the first problems of this rank
  int64_t num_problems_ = 0;
};

// Whether the ranks must compare their files if samples are made of bytes: ranks on several hosts divide the model, so
// that they compute parts of the same samples. Files that become tokens are always compared (AgreeOnKey).
bool MustCompareBytes(const StartOrder& order) {
  return DividesModel(order.config) && order.local_world_size != order.world_size;
}

// Collective. Reads all files. Without this check, the first stage of a pipeline might take inputs from other bytes
// than those from which the last stage takes targets. This would stay unnoticed if both had equally many samples.
absl::Status CompareBytes(const StartOrder& order, Communicator& world, Link* link, const RankData& data) {
  std::string hashes = data.train.corpus->Fingerprint().content_hash, keys = data.train.key;
  if (data.held_out.corpus != nullptr) {
    absl::StrAppend(&hashes, " ", data.held_out.corpus->Fingerprint().content_hash);
    absl::StrAppend(&keys, ", ", data.held_out.key);
  }
  RETURN_IF_ERROR(world.MonitoredBarrier(kReadingLimit)) << "while the ranks read their data";
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ShareSentences(hashes, world), << "while comparing the data");
  const std::string others = RanksWithOtherText(all);
  if (others.empty()) return absl::OkStatus();
  const auto content_hash = [&data] { return data.train.corpus->Fingerprint().content_hash; };
  return RefuseDataOrHosts(
      order, data.checkpoint, content_hash, world, link,
      absl::InvalidArgumentError(absl::StrCat(
          keys, ": the content of the files differs from that of rank 0 on ", others,
          "; stages and tensor ranks compute parts of the same samples, so give all hosts the same files")));
}

}  // namespace

absl::Status TokenizeData(const StartOrder& order, const TokenizeOptions& options, Communicator& world, RankData& data,
                          std::ostream& log) {
  const bool compares_bytes = data.train.plan == nullptr && MustCompareBytes(order);
  if (data.train.plan == nullptr && !compares_bytes) return absl::OkStatus();
  if (options.link != nullptr) options.link->ReportProgress(Phase::kTokenize, 0);
  if (compares_bytes) {
    RETURN_IF_ERROR(CompareBytes(order, world, options.link, data));
    if (options.link != nullptr) options.link->ReportProgress(Phase::kJoining, 0);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Tokenizing(order, options, world, data.train, data.checkpoint, /*is_held_out=*/false, log).Run());
  if (data.held_out.plan != nullptr) {
    RETURN_IF_ERROR(Tokenizing(order, options, world, data.held_out, {}, /*is_held_out=*/true, log).Run());
  }
  if (options.link != nullptr) options.link->ReportProgress(Phase::kJoining, 0);
  return absl::OkStatus();
}

}  // namespace trainyard
