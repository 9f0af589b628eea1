// The end of a run: the last save, which is retried if it fails, and the wait for the checkpoint to be named.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/saving/saver.h"
#include "worker/saving/sentences.h"

namespace trainyard {
namespace {

// How long the last save waits until its checkpoint is complete. Rank 0 may still be reading all data then, to describe
// them in the first checkpoint; tokenization has the same limit (kReadingLimit).
constexpr absl::Duration kCompletionWait = absl::Hours(12);
// How long a complete checkpoint waits for the coordinator's grant.
constexpr absl::Duration kGrantWait = absl::Minutes(10);
// How long a rank that must leave still waits for its saves to be complete: an incomplete one is lost. With the wait
// below and the last reports, this is less than limits::kStopGrace, after which the rank is killed.
constexpr absl::Duration kLeavingCompletionWait = absl::Seconds(5);
// How long it waits after that for a checkpoint to be named, which the next generation can do as well.
constexpr absl::Duration kLeavingWait = absl::Seconds(3);
// How long naming checkpoints without a grant, and removing old ones, may take.
constexpr absl::Duration kNamingWait = absl::Seconds(30);
// Delay before the second try; doubled after each failure.
constexpr absl::Duration kFirstDelay = absl::Seconds(1);
constexpr absl::Duration kLongestDelay = absl::Seconds(30);
// How long to wait for the files of a failed try to be removed.
constexpr absl::Duration kClearingWait = absl::Minutes(1);

// Limits the time for which rank 0 waits for checkpoints to be named. The limit of the grant counts only from when
// nothing but grants is waited for.
class NamingLimit {
 public:
  NamingLimit(Clock& clock, CommitThread& commits)
      : clock_(clock), commits_(commits), until_(clock.TimeNow() + kCompletionWait) {}

  bool IsReached() {
    const absl::Time now = clock_.TimeNow();
    if (!only_grants_ && commits_.AwaitTasks(absl::ZeroDuration())) {
      only_grants_ = true;
      until_ = now + kGrantWait;
    }
    return now >= until_;
  }

 private:
  Clock& clock_;
  CommitThread& commits_;
  absl::Time until_;
  bool only_grants_ = false;
};

}  // namespace

void Saver::Finish(const std::function<bool()>& leaves) {
  if (commits_ == nullptr) return;
  NamingLimit limit(deps_.clock, *commits_);
  while (!commits_->Drain(kSlice)) {
    if (leaves()) {
      if (commits_->AwaitTasks(kLeavingCompletionWait)) commits_->Drain(kLeavingWait);
      break;
    }
    if (!limit.IsReached()) continue;
    commits_->Drain(kNamingWait, /*without_grant=*/true);
    break;
  }
  Maintain();
}

void Saver::MaintainAtEnd(absl::Duration limit) {
  if (commits_ == nullptr) return;
  if (const uint64_t fact = commits_->unconfirmed_fact(); fact > 0) deps_.link.AwaitAcknowledged(fact, limit);
  commits_->PruneConfirmed();
  commits_->AwaitTasks(kNamingWait);
  Maintain();
}

absl::StatusOr<Saver::LastSave> Saver::SaveLast(uint64_t step, const Position& position, const LastSaveHooks& hooks) {
  const bool is_rank_0 = deps_.order.rank == 0;
  absl::Duration delay = kFirstDelay;
  absl::Time until = absl::InfiniteFuture();  // set when the first try has failed
  for (last_try_ = 1;; ++last_try_) {
    hooks.enter(Phase::kSave);
    ASSIGN_OR_RETURN(const bool written, SaveAndWait(step, position, /*stop_request=*/0));
    hooks.enter(Phase::kLeaving);
    bool all_stay = true;
    if (written) {
      ASSIGN_OR_RETURN(all_stay, AwaitName(hooks));
    }
    Maintain();
    const std::string own = TakeLastFailure(step, written);
    // A rank must leave. If the checkpoint is complete but not named yet, the next generation will name it. Only rank 0
    // knows whether it is named; the other ranks keep their snapshots.
    if (!all_stay) return LastSave{.saved = is_rank_0 && own.empty()};
    ASSIGN_OR_RETURN(const std::vector<std::string> failures, ShareSentences(own, deps_.world),
                     << "while exchanging the outcome of the last save");
    if (written && failures.empty()) return LastSave{.saved = true};
    // Stops retrying if another job has claimed the folder, or the generation has ended.
    if (is_rank_0) {
      if (absl::Status fence = deps_.check_fence(); absl::IsAborted(fence)) return fence;
      RETURN_IF_ERROR(deps_.link.abort_status());
    }
    const std::string why = failures.empty() ? "no rank reported why" : failures[0];
    const absl::Time now = deps_.clock.TimeNow();
    if (last_try_ == 1) until = now + absl::Seconds(config_.checkpoint_last_save_retry_s);
    const absl::Duration remaining = until - now;
    ReportLastFailure(step, why, /*will_retry=*/remaining > absl::ZeroDuration(), hooks);
    ASSIGN_OR_RETURN(const bool retries, AwaitNextTry(std::min(delay, remaining), hooks));
    // If there is time left, the retries end because a rank must leave, the job was cancelled, or the files of the
    // failed try could not be removed, not because of `why`.
    const bool time_is_over = deps_.clock.TimeNow() >= until;
    if (!retries) return LastSave{.unsaved = is_rank_0 && time_is_over ? why : ""};
    delay = std::min(2 * delay, kLongestDelay);
  }
}

absl::StatusOr<bool> Saver::AwaitName(const LastSaveHooks& hooks) {
  std::optional<NamingLimit> limit;
  if (commits_ != nullptr) limit.emplace(deps_.clock, *commits_);
  double* terms = terms_.mutable_data_ptr<double>();
  while (true) {
    bool ended = commits_ != nullptr && commits_->Drain(kSlice);
    if (limit.has_value() && !ended && limit->IsReached()) {
      commits_->Drain(kNamingWait, /*without_grant=*/true);
      ended = true;
    }
    const bool leaves = hooks.leaves();
    terms[0] = ended ? 1 : 0;
    terms[1] = leaves ? 1 : 0;
    terms[2] = terms[3] = 0;
    RETURN_IF_ERROR(SumTerms()) << "while waiting for the name of the last checkpoint";
    if (terms[0] > 0) return true;
    if (terms[1] == 0) continue;
    // Only rank 0 names the checkpoint, so it alone waits a little longer.
    Finish(hooks.leaves);
    return false;
  }
}

std::string Saver::TakeLastFailure(uint64_t step, bool written) {
  std::string why = std::exchange(last_failure_, "");
  if (commits_ != nullptr) {
    const absl::Status failure = commits_->TakeFailure();
    if (commits_->newest_named() >= step) return "";
    if (!failure.ok()) absl::StrAppend(&why, why.empty() ? "" : "; ", failure.message());
    if (why.empty() && written) {
      why = absl::StrCat("the checkpoint of step ", step, " is complete, but did not get its name in time");
    }
  }
  return why.empty() ? "" : RankSentence(deps_.order, why);
}

void Saver::ReportLastFailure(uint64_t step, const std::string& why, bool will_retry, const LastSaveHooks& hooks) {
  if (deps_.order.rank != 0) return;
  const StopRequest stop = hooks.new_stop();
  deps_.log << "the last save, of step " << step << ", failed" << (will_retry ? " and is tried again: " : ": ") << why
            << std::endl;
  // If a stop needs this save, the failure cancels the stop, and the ranks stay to try again.
  deps_.link.ReportFact(SaveFailedFact{.step = step,
                                       .message = why,
                                       .stop_request = stop.needs_save ? stop.number : 0,
                                       .will_retry = will_retry && (stop.number == 0 || stop.needs_save),
                                       .is_last = true});
}

absl::StatusOr<bool> Saver::AwaitNextTry(absl::Duration delay, const LastSaveHooks& hooks) {
  const bool is_rank_0 = deps_.order.rank == 0;
  const bool time_is_over = delay <= absl::ZeroDuration();
  const absl::Time retry_at = deps_.clock.TimeNow() + delay;
  double* terms = terms_.mutable_data_ptr<double>();
  while (true) {
    bool retries = false, ends = hooks.leaves();
    if (is_rank_0) {
      // The files of the failed try must be removed before the next try begins.
      const bool cleared = commits_->AwaitTasks(kSlice);
      const absl::Duration remaining = retry_at - deps_.clock.TimeNow();
      const StopRequest stop = hooks.new_stop();
      retries = !time_is_over && cleared && remaining <= absl::ZeroDuration();
      ends = ends || (time_is_over && cleared) || (stop.number > 0 && !stop.needs_save) || remaining < -kClearingWait;
      if (!retries && !ends && remaining > absl::ZeroDuration()) {
        const absl::Duration slice = std::min(kSlice, remaining);
        deps_.wait == nullptr ? commits_->Pause(slice) : deps_.wait(slice);
      }
    }
    terms[0] = retries ? 1 : 0;
    terms[1] = ends ? 1 : 0;
    terms[2] = terms[3] = 0;
    RETURN_IF_ERROR(SumTerms()) << "while waiting to save again";
    if (terms[1] > 0) return false;
    if (terms[0] > 0) return true;
  }
}

}  // namespace trainyard
