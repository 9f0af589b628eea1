#include "coordinator/handlers/script_reports.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/limits.h"
#include "coordinator/core/history.h"
#include "coordinator/handlers/account_goodput.h"
#include "coordinator/handlers/cancel_job.h"
#include "coordinator/handlers/checkpoint_facts.h"

namespace trainyard {
namespace {

bool IsPlausible(const v1::ScriptCheckpoint& checkpoint) {
  const std::string& path = checkpoint.path();
  return checkpoint.step() > 0 && checkpoint.step() <= kScriptStepsMax && !path.empty() && path[0] == '/' &&
         path.size() <= limits::kPathBytes;
}

}  // namespace

void RecordScriptReport(Turn& turn, Job& job, const v1::RankReport& report) {
  if (!job.head().spec().has_command()) return;
  job.current.saves_on_request = job.current.saves_on_request || report.saves_on_request();
  if (!report.has_script_checkpoint() || !IsPlausible(report.script_checkpoint())) return;
  const v1::ScriptCheckpoint& checkpoint = report.script_checkpoint();
  const bool answers = job.record.save_awaited() && checkpoint.save_request() >= job.record.save_requests();
  if (answers) {
    job.record.clear_save_awaited();
    job.record.clear_save_asked_step();
    turn.Save(job);
    turn.Push(job.ranks.front().host());  // the request leaves the desired state
  }
  bool is_new = true;
  if (job.head().checkpoints_size() > 0) {
    const v1::CheckpointInfo& newest = *job.head().checkpoints().rbegin();
    is_new = newest.generation() != job.head().generation() || checkpoint.step() > newest.step();
  }
  if (!is_new && !answers) return;
  v1::CheckpointInfo info;
  info.set_step(checkpoint.step());
  info.set_generation(job.head().generation());
  info.set_path(checkpoint.path());
  info.set_size_bytes(checkpoint.size_bytes());
  info.set_recorded_unix_ms(absl::ToUnixMillis(turn.wall));
  if (is_new) {
    RecordCheckpoint(turn, job, info);
    CountSavedSteps(turn, job, checkpoint.step());
    turn.Emit(SaveCounted{.failed = false, .size_bytes = checkpoint.size_bytes(), .seconds = std::nullopt});
  }
  info.set_requested(answers);
  v1::Event event;
  *event.mutable_checkpoint() = std::move(info);
  turn.Publish(job, std::move(event));
  if (answers && job.record.cancel_when_saved()) Cancel(turn, job, std::string(job.record.cancel_reason()));
}

}  // namespace trainyard
