#include "coordinator/handlers/rank_progress.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/policy/hang.h"

namespace trainyard {
namespace {

constexpr size_t kCommunicators = 16;  // limit for the groups and channels of a rank
constexpr size_t kTextBytes = 128;
constexpr size_t kPhaseTimes = 16;
constexpr size_t kPhaseBytes = 32;
constexpr absl::Duration kCpuInterval = absl::Milliseconds(400);
// A share of one core. The threads of a waiting process use less.
constexpr double kBusyCpuShare = 0.05;
// A learned time is written again once it has grown by this factor.
constexpr double kRewriteFactor = 1.5;

v1::PhaseRecord* FindPhase(Job& job, absl::string_view phase) {
  for (v1::PhaseRecord& record : *job.record.mutable_phases()) {
    if (record.phase() == phase) return &record;
  }
  return nullptr;
}

// Only these phases are measured: a trainer that invented new phase names could otherwise fill the coordinator's
// memory.
bool IsMeasured(std::optional<Phase> phase) {
  return phase == Phase::kFirstStep || phase == Phase::kTrain || phase == Phase::kEvaluate || phase == Phase::kSave;
}

void Learn(Turn& turn, Job& job, const v1::RankReport& report, absl::Time made_at) {
  for (int i = 0; i < report.phase_times_size() && i < static_cast<int>(kPhaseTimes); ++i) {
    const v1::PhaseTime& time = report.phase_times(i);
    const std::optional<Phase> phase = ParsePhase(time.phase());
    if (!IsMeasured(phase) || !(time.longest_s() > 0)) continue;
    // A duration that includes a stall is not learned.
    if (made_at - absl::Seconds(time.longest_s()) < job.unlearned_until) continue;
    if (job.current.hang.published_is_learned && !job.current.hang.published.empty() &&
        made_at > job.current.hang.stalled_since)
      continue;
    PhaseTimes& times = job.phase_times[*phase];
    times.Add(report.last_step(), time.longest_s());
    if (phase == Phase::kTrain) job.head().set_learned_step_s(times.longest());
    v1::PhaseRecord& record = PhaseRecordOf(job, time.phase());
    if (times.longest() > kRewriteFactor * record.learned_s()) {
      record.set_learned_s(times.longest());
      turn.Save(job);
    }
  }
}

bool SamePosition(const RankPosition& position, const v1::RankReport& report) {
  if (position.phase.name() != report.phase() || position.last_step != report.last_step()) return false;
  if (static_cast<int>(position.communicators.size()) != std::min<int>(report.communicators_size(), kCommunicators)) {
    return false;
  }
  for (size_t i = 0; i < position.communicators.size(); ++i) {
    const v1::CommunicatorReport& now = report.communicators(static_cast<int>(i));
    if (position.communicators[i].started() != now.started() ||
        position.communicators[i].completed() != now.completed()) {
      return false;
    }
  }
  return true;
}

v1::CommunicatorReport CutReport(const v1::CommunicatorReport& report) {
  v1::CommunicatorReport cut = report;
  cut.set_name(CutText(report.name(), kTextBytes));
  cut.set_waits_in(CutText(report.waits_in(), kTextBytes));
  cut.set_last_started(CutText(report.last_started(), kTextBytes));
  return cut;
}

void RecordProcess(Turn& turn, Rank& rank, const v1::RankReport& report) {
  RankPosition& position = rank.position;
  position.seen_at = turn.now;
  position.silent = report.silent();
  position.process_state = report.process_state().substr(0, 1);
  if (turn.now - rank.cpu_at < kCpuInterval || report.cpu_total_s() <= 0) return;
  if (rank.cpu_at != absl::InfinitePast()) {
    double share = (report.cpu_total_s() - rank.cpu_s) / absl::ToDoubleSeconds(turn.now - rank.cpu_at);
    if (share >= kBusyCpuShare) position.busy_at = turn.now;
  }
  rank.cpu_s = report.cpu_total_s();
  rank.cpu_at = turn.now;
}

}  // namespace

v1::PhaseRecord& PhaseRecordOf(Job& job, const std::string& phase) {
  v1::PhaseRecord* record = FindPhase(job, phase);
  if (record == nullptr) {
    record = job.record.add_phases();
    record->set_phase(phase);
  }
  return *record;
}

void RecordPosition(Turn& turn, Job& job, Rank& rank, const v1::RankReport& report) {
  RecordProcess(turn, rank, report);
  absl::Time made_at = turn.now - absl::Seconds(std::clamp(report.age_s(), 0.0, 1e6));
  RankPosition& position = rank.position;
  // A report that a daemon sends again has nothing new about the trainer itself.
  if (report.phase().empty() || made_at < position.reported_at) return;
  position.reported_at = made_at;
  Learn(turn, job, report, made_at);
  if (report.micro_batches_made() > 0) {
    rank.compute_window.Add(made_at, report.compute_total_s(), report.micro_batches_made(), report.steps_made(),
                            report.wait_total_s());
    rank.wait_trend.Add(made_at, report.compute_total_s(), report.wait_total_s(), report.steps_made());
  }
  position.phase_s = report.phase_s();
  if (!SamePosition(position, report)) {
    position.progress_at = turn.now;
    job.current.hang.progress_at = turn.now;
  }
  position.phase = ReportedPhase(CutText(report.phase(), kPhaseBytes));
  position.last_step = report.last_step();
  position.communicators.clear();
  for (int i = 0; i < report.communicators_size() && i < static_cast<int>(kCommunicators); ++i) {
    position.communicators.push_back(CutReport(report.communicators(i)));
  }
}

}  // namespace trainyard
