#include "worker/saving/saver.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/catalog.h"
#include "common/status_macros.h"
#include "worker/data/data_check.h"
#include "worker/saving/state.h"

namespace trainyard {
namespace {

// How long a save that is due waits for the previous save; see docs/decisions/0006-saves.md.
constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr int kNumWaitTerms = 4;

// Adds the time for which it exists to a duration.
class Stall {
 public:
  Stall(Clock& clock, absl::Duration& total) : clock_(clock), total_(total), began_(clock.TimeNow()) {}
  ~Stall() { total_ += clock_.TimeNow() - began_; }
  Stall(const Stall&) = delete;
  Stall& operator=(const Stall&) = delete;

 private:
  Clock& clock_;
  absl::Duration& total_;
  const absl::Time began_;
};

SavePolicy::Sums SumsOf(uint64_t of_step, const AgreementTerms& sum) {
  return {.of_step = of_step,
          .ended = static_cast<int>(sum.saves_ended),
          .failed = static_cast<int>(sum.saves_failed),
          .given_up = sum.give_up > 0,
          .requests = static_cast<uint64_t>(sum.save_request),
          .commits_failed = static_cast<uint64_t>(sum.commits_failed)};
}

// Records the data's identity, so that a restart can check whether the data were changed. Returns a warning, or
// nothing.
std::string RecordDataIdentity(const Corpus& corpus, const std::string& run_folder, const std::string& host,
                               const ManifestData& data, const std::function<absl::Status()>& check_fence) {
  if (!corpus.CheckUntouched().ok()) {
    return "warning: files of train.data were changed during training; the job continues with the new content";
  }
  if (!check_fence().ok()) return "";
  const absl::Status noted = RecordData(run_folder, data.content_hash, corpus.identity(), host);
  if (noted.ok()) return "";
  return absl::StrCat("warning: a restart will read all data again, because the data's identity was not recorded: ",
                      noted.message());
}

}  // namespace

// The save that all ranks have begun and that at least one rank has not ended.
struct Saver::UnderWay {
  CommitTask commit;
  bool counts_as_ended = false;  // in the newest sum to which this rank has contributed
};

Saver::Saver(Deps deps)
    : deps_(std::move(deps)),
      config_(deps_.order.config),
      policy_(config_.checkpoint_every, deps_.order.world_size),
      thread_(deps_.file_system, deps_.clock, config_.checkpoint_write_bytes_per_s),
      gathered_(deps_.ledger),
      device_copies_(deps_.ledger),
      terms_(at::zeros({kNumWaitTerms}, at::kDouble)) {
  if (deps_.order.rank != 0) return;
  commits_ = std::make_unique<CommitThread>(CommitThread::Deps{
      .run_folder = config_.checkpoint_dir,
      .generation = deps_.order.generation,
      .retention = {.keep = config_.checkpoint_keep,
                    .keep_every = config_.checkpoint_keep_every,
                    .keep_best = config_.checkpoint_keep_best},
      .file_system = deps_.file_system,
      .link = deps_.link,
      .clock = deps_.clock,
      .check_fence = deps_.check_fence,
      .recreate_folder = deps_.recreate_folder,
      // This function owns what it uses, because the rank may leave while the commit thread reads all data.
      .describe_data = [corpus = deps_.corpus, restored_hash = deps_.restored_content_hash,
                        run_folder = config_.checkpoint_dir, host = deps_.order.host, check_fence = deps_.check_fence,
                        reported = std::string()](ManifestData& data) mutable {
        std::string warning = DescribeData(*corpus, restored_hash, data);
        if (warning.empty()) warning = RecordDataIdentity(*corpus, run_folder, host, data, check_fence);
        return std::exchange(reported, warning) == warning ? "" : warning;
      }});
}

Saver::~Saver() = default;

void Saver::AddTerms(AgreementTerms& terms) const {
  if (deps_.order.rank == 0) {
    terms.save_request = static_cast<double>(deps_.link.save_requests());
    terms.commits_failed = static_cast<double>(commits_->num_failed());
    terms.give_up = GivesUp() ? 1 : 0;
  }
  if (under_way_ == nullptr) return;
  const std::optional<SaveEnd> end = Ended();
  under_way_->counts_as_ended = end.has_value();
  terms.saves_ended = end.has_value() ? 1 : 0;
  terms.saves_failed = end.has_value() && !end->status.ok() ? 1 : 0;
}

std::optional<SaveEnd> Saver::Ended(absl::Duration patience) const {
  // No save follows the last one, so it need not wait for space in the queue. If it did, earlier commits that take
  // longer than checkpoint.timeout_s, because rank 0 reads all data for the first of them, would make it fail.
  const bool waits_for_space = commits_ != nullptr && last_try_ == 0;
  if (waits_for_space && !commits_->AwaitQueueSpace(patience)) return std::nullopt;
  return thread_.ended();
}

void Saver::Update(uint64_t step, uint64_t of_step, const AgreementTerms& sum) {
  ApplySums(step, SumsOf(of_step, sum));
}

bool Saver::GivesUp() const {
  return under_way_ != nullptr &&
         deps_.clock.TimeNow() - under_way_->commit.began > absl::Seconds(config_.checkpoint_timeout_s);
}

void Saver::ApplySums(uint64_t step, const SavePolicy::Sums& sums) {
  failed_commits_ = std::max(failed_commits_, sums.commits_failed);
  const SavePolicy::Outcome outcome = policy_.Update(step, sums);
  if (outcome == SavePolicy::Outcome::kNothing) return;
  std::unique_ptr<UnderWay> done = std::move(under_way_);
  const SaveKey save = done->commit.save;
  written_ = outcome == SavePolicy::Outcome::kWritten;
  const std::optional<SaveEnd> own = thread_.ended();
  if (own.has_value() && !own->snapshot.ok() && !std::exchange(reported_unsealed_, true)) {
    deps_.log << "warning: the copy of step " << save.step
              << " in shared memory cannot be used if this trainer is killed; saves to disk continue: "
              << own->snapshot.message() << std::endl;
  }
  if (own.has_value() && !own->beyond_range.empty() && !std::exchange(reported_beyond_range_, true)) {
    deps_.log << "warning: " << own->beyond_range << " of step " << save.step
              << " has values in the 16-bit copy that are infinite or not a number; fp16 ends at 65,504, bf16 has "
                 "the range of fp32"
              << std::endl;
  }
  if (outcome == SavePolicy::Outcome::kWritten) {
    newest_written_ = save.step;
    // Every rank has written its part, so snapshots of older generations are no longer needed.
    if (deps_.order.generation > 1 && !deps_.order.snapshot_folder.empty()) thread_.RemoveOlderSnapshots(Place());
    if (commits_ != nullptr) commits_->Commit(std::move(done->commit));
    return;
  }
  thread_.WaitForCopy();  // under_way_ is null now, so the loop would not wait for this copy
  const std::string late = absl::StrCat(" after checkpoint.timeout_s (", config_.checkpoint_timeout_s, " s)");
  thread_.GiveUp(absl::DeadlineExceededError(absl::StrCat("it was still being written", late)));
  const std::optional<SaveEnd> end = thread_.ended();
  absl::Status why = end.has_value() ? end->status : absl::OkStatus();
  // This rank's part is written, but the save was given up because this rank did not count it as ended. No other rank
  // can report this reason.
  if (why.ok() && sums.given_up && !done->counts_as_ended) {
    why = absl::DeadlineExceededError(absl::StrCat(
        commits_ != nullptr ? "earlier checkpoints were still being completed" : "it was still being written", late));
  }
  if (done->commit.quiet) {
    if (!why.ok()) last_failure_ = std::string(why.message());
  } else if (!why.ok() && !absl::IsAborted(why)) {
    ReportFailure(save.step, std::string(why.message()), done->commit.stop_request);
  }
  if (commits_ != nullptr) commits_->Discard(save);
}

void Saver::ReportFailure(uint64_t step, const std::string& why, uint64_t stop_request) {
  deps_.log << "save of step " << step << " failed, training continues: " << why << std::endl;
  deps_.link.ReportFact(SaveFailedFact{.step = step, .message = why, .stop_request = stop_request});
}

void Saver::WaitForCopy() {
  if (under_way_ == nullptr) return;
  const Stall stall(deps_.clock, stalled_);
  const absl::Time began = deps_.clock.TimeNow();
  thread_.WaitForCopy();
  under_way_->commit.stalled += deps_.clock.TimeNow() - began;
}

absl::Status Saver::AtBoundary(uint64_t step, const Position& position, bool due) {
  SavePolicy::Action action = policy_.AtBoundary(step, due);
  if (action == SavePolicy::Action::kAwait) {
    const Stall stall(deps_.clock, stalled_);
    RETURN_IF_ERROR(AwaitUnderWay(step, kPatience));
    if (policy_.under_way().has_value()) policy_.WaitTimedOut();
    action = policy_.AtBoundary(step, due);
  }
  if (action != SavePolicy::Action::kBegin) return absl::OkStatus();
  const Stall stall(deps_.clock, stalled_);
  RETURN_IF_ERROR(Begin(step, position, /*waited=*/!copies_, 0));
  return copies_ ? absl::OkStatus() : AwaitUnderWay(step, absl::InfiniteDuration());
}

absl::StatusOr<bool> Saver::SaveAndWait(uint64_t step, const Position& position, uint64_t stop_request) {
  const Stall stall(deps_.clock, stalled_);
  thread_.LiftByteLimit();
  RETURN_IF_ERROR(AwaitUnderWay(step, absl::InfiniteDuration()));
  RETURN_IF_ERROR(Begin(step, position, /*waited=*/true, stop_request));
  thread_.LiftByteLimit();
  RETURN_IF_ERROR(AwaitUnderWay(step, absl::InfiniteDuration()));
  return written_ && stop_request > 0 ? AwaitComplete(step, stop_request) : written_;
}

absl::Status Saver::Begin(uint64_t step, const Position& position, bool waited, uint64_t stop_request) {
  const SaveKey save{
      .step = step, .generation = deps_.order.generation, .world_size = static_cast<uint64_t>(deps_.order.world_size)};
  auto begun = std::make_unique<UnderWay>();
  begun->commit = {.save = save,
                   .began = deps_.clock.TimeNow(),
                   .waited = waited,
                   .stop_request = stop_request,
                   .quiet = last_try_ > 0};
  SaveTask task{.save = save,
                .rank = static_cast<uint64_t>(deps_.order.rank),
                .folder = PartialPath(config_.checkpoint_dir, step, save.generation),
                .is_retry = last_try_ > 1,
                .needs_copy = !waited,
                .may_write = deps_.check_fence};
  const bool has_snapshot = shares_ && !waited;
  if (commits_ != nullptr || has_snapshot) begun->commit.head = MakeSaveHead(deps_.order, deps_.state, step, position);
  if (has_snapshot) task.snapshot_text = ManifestText(begun->commit.head);
  if (commits_ != nullptr) begun->commit.tensors = TensorsOfSave();
  if (const WholeFiles wanted = WantedFiles(); wanted.any()) {
    RETURN_IF_ERROR(gathered_.AddTo(deps_.state, wanted, deps_.order.rank == 0, task)) << "while saving step " << step;
  }
  const StateRoles roles = !config_.checkpoint_full            ? StateRoles::kAll
                           : config_.checkpoint_full_optimizer ? StateRoles::kNone
                                                               : StateRoles::kOptimizer;
  RETURN_IF_ERROR(AddOwnState(deps_.state, roles, device_copies_, task));
  begun->commit.stalled = deps_.clock.TimeNow() - begun->commit.began;
  under_way_ = std::move(begun);
  policy_.Began(step, waited && copies_);
  thread_.Begin(std::move(task));
  return absl::OkStatus();
}

std::vector<TensorHeader> Saver::TensorsOfSave() const {
  std::vector<TensorHeader> tensors = StateHeaders(tensors_);
  std::vector<TensorHeader> copies = CopyHeaders(deps_.state, config_.checkpoint_copy);
  std::move(copies.begin(), copies.end(), std::back_inserter(tensors));
  return tensors;
}

WholeFiles Saver::WantedFiles() const {
  return {.parameters = config_.checkpoint_full,
          .optimizer = config_.checkpoint_full && config_.checkpoint_full_optimizer,
          .copy_dtype = config_.checkpoint_copy};
}

absl::Status Saver::SumTerms() { return deps_.world.AllReduceSum(terms_)->Wait(); }

absl::Status Saver::AwaitUnderWay(uint64_t step, absl::Duration patience) {
  enum { kEnded, kFailed, kGivenUp, kTimedOut };  // indices of terms
  const absl::Time began = deps_.clock.TimeNow();
  double* terms = terms_.mutable_data_ptr<double>();
  for (bool timed_out = false; policy_.under_way().has_value() && !timed_out;) {
    thread_.AwaitEnd(kSlice);
    const std::optional<SaveEnd> end = Ended(kSlice);
    const bool is_rank_0 = deps_.order.rank == 0;
    under_way_->counts_as_ended = end.has_value();
    terms[kEnded] = end.has_value() ? 1 : 0;
    terms[kFailed] = end.has_value() && !end->status.ok() ? 1 : 0;
    terms[kGivenUp] = is_rank_0 && GivesUp() ? 1 : 0;
    terms[kTimedOut] = is_rank_0 && deps_.clock.TimeNow() - began >= patience ? 1 : 0;
    RETURN_IF_ERROR(SumTerms()) << "while waiting for a save";
    timed_out = terms[kTimedOut] > 0;
    ApplySums(step, {.ended = static_cast<int>(terms[kEnded]),
                     .failed = static_cast<int>(terms[kFailed]),
                     .given_up = terms[kGivenUp] > 0});
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Saver::AwaitComplete(uint64_t step, uint64_t stop_request) {
  enum { kOver, kComplete, kNumTerms };  // indices of terms
  // The save itself has ended, so GivesUp no longer limits the time of its commit.
  const absl::Time deadline = deps_.clock.TimeNow() + absl::Seconds(config_.checkpoint_timeout_s);
  double* terms = terms_.mutable_data_ptr<double>();
  while (true) {
    const bool ended = commits_ != nullptr && (commits_->Drain(kSlice) || commits_->newest_complete() >= step);
    const bool late = commits_ != nullptr && !ended && deps_.clock.TimeNow() >= deadline;
    if (late) {
      ReportFailure(step,
                    absl::StrCat("its checkpoint was not complete after checkpoint.timeout_s (",
                                 config_.checkpoint_timeout_s, " s)"),
                    stop_request);
    }
    terms[kOver] = ended || late ? 1 : 0;
    terms[kComplete] = ended && commits_->newest_complete() >= step ? 1 : 0;
    std::fill(terms + kNumTerms, terms + kNumWaitTerms, 0.0);
    RETURN_IF_ERROR(SumTerms()) << "while waiting for a checkpoint to be complete";
    if (terms[kOver] > 0) return terms[kComplete] > 0;
  }
}

void Saver::Maintain() {
  if (commits_ == nullptr) return;
  commits_->PruneConfirmed();
  for (const std::string& line : commits_->TakeLines()) deps_.log << line << std::endl;
}

double Saver::TakeStallSeconds() { return absl::ToDoubleSeconds(std::exchange(stalled_, absl::ZeroDuration())); }

}  // namespace trainyard
