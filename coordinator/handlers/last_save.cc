#include "coordinator/handlers/last_save.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/hangs.h"

namespace trainyard {
namespace {

constexpr char kLastSaveFailed[] = "the last save failed and is tried again: ";
constexpr char kLastSaveMade[] = "the last save has succeeded after all";
constexpr size_t kErrorBytes = 1'024;

}  // namespace

bool WasPublished(const Job& job, DecisionRule rule, absl::string_view text) {
  const auto& events = job.history.durable();
  return std::any_of(events.begin(), events.end(), [&](const EventPtr& event) {
    return event->generation() == job.head().generation() && event->notice().rule() == RuleName(rule) &&
           event->notice().text() == text;
  });
}

bool LastSaveIsRetried(const Job& job) {
  const auto& events = job.history.durable();
  for (auto event = events.rbegin(); event != events.rend() && (*event)->generation() == job.head().generation();
       ++event) {
    if ((*event)->has_checkpoint()) return false;
    const v1::Notice& notice = (*event)->notice();
    const uint64_t failed = notice.failed_save_step();
    if (failed == 0) continue;
    if (failed >= job.head().spec().train().steps() || absl::StartsWith(notice.text(), kLastSaveFailed)) return true;
  }
  return false;
}

void PublishLastSaveFailure(Turn& turn, Job& job, const Rank& rank, const v1::CheckpointFailed& failed) {
  // The message of rank 0 may begin with the name of another rank: the one that failed.
  const bool names_rank = absl::StartsWith(failed.message(), "rank ");
  const std::string who = names_rank ? "" : absl::StrCat("rank ", rank.record.rank(), " on ", rank.record.host(), ": ");
  const std::string text = absl::StrCat(kLastSaveFailed, who, CutText(failed.message(), kErrorBytes));
  if (!WasPublished(job, DecisionRule::kCheckpoint, text)) {
    turn.Warn(absl::StrCat("job ", job.id.value(), ": ", text));
    v1::Event event;
    event.mutable_notice()->set_level(LevelName(NoticeLevel::kError));
    event.mutable_notice()->set_rule(RuleName(DecisionRule::kCheckpoint));
    event.mutable_notice()->set_failed_save_step(failed.step());
    event.mutable_notice()->set_text(text);
    turn.Publish(job, std::move(event));
  }
  if (job.state() == v1::JOB_STATE_RUNNING && job.head().reason() != text) turn.SetReason(job, text);
}

void PublishLastSaveSuccess(Turn& turn, Job& job) {
  // The ranks report their progress a moment later, and the time of the retries must not count as a stall until then.
  RestartStallTimer(turn, job);
  turn.Decide(job, DecisionRule::kCheckpoint, NoticeLevel::kInfo, kLastSaveMade);
  if (job.state() == v1::JOB_STATE_RUNNING) turn.SetReason(job, kLastSaveMade);
}

}  // namespace trainyard
