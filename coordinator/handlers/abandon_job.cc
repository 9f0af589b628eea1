#include "coordinator/handlers/abandon_job.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plural.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/late_reports.h"
#include "coordinator/handlers/place_jobs.h"
#include "coordinator/handlers/slots.h"
#include "coordinator/policy/placement.h"
#include "coordinator/policy/saves.h"

namespace trainyard {
namespace {

// A host that has not answered by then does not have it, as far as this job is concerned.
constexpr absl::Duration kAnswerWait = absl::Seconds(5);
// What is not there now may be later.
constexpr absl::Duration kAskAgain = absl::Minutes(1);
constexpr size_t kNoteBytes = 128;
constexpr size_t kHostsNamed = 3;

void Ask(Turn& turn, Job& job, const HostName& name, const std::string& path) {
  job.path_looks[name] =
      PathLook{.request_id = absl::StrCat(job.id.value(), ".", name.value(), ".", absl::ToUnixMillis(turn.now)),
               .path = path,
               .asked_at = turn.now,
               .answer = std::nullopt};
  turn.state.looking.insert(job.id);
  turn.Push(name);
}

bool IsDue(const Turn& turn, const PathLook& look, const std::string& path) {
  if (look.path != path) return true;
  return !(look.answer.has_value() && look.answer->there()) && turn.now - look.asked_at >= kAskAgain;
}

// A granted one may not have its name yet: the run folder it lies in is looked for, where none has.
v1::CheckpointInfo NewestOf(const Job& job) {
  const v1::Job& head = job.head();
  if (head.checkpoints_size() > 0) return head.checkpoints(head.checkpoints_size() - 1);
  v1::CheckpointInfo info;
  if (const v1::CheckpointGrant* granted = NewestGranted(job.record.grants()); granted != nullptr) {
    info.set_step(granted->step());
    info.set_path(head.spec().checkpoint().dir());
  }
  return info;
}

}  // namespace

bool MayAbandon(Turn& turn, Job& job) {
  const v1::CheckpointInfo newest = NewestOf(job);
  if (newest.path().empty()) return true;  // it begins anew wherever that is
  std::vector<std::string> without;
  std::vector<std::string> told;
  bool awaited = false;
  for (const HostSlots& host : FreeSlots(turn.state)) {
    if (!host.barred.empty()) continue;
    auto look = job.path_looks.find(host.name);
    if (look == job.path_looks.end() || IsDue(turn, look->second, newest.path())) {
      Ask(turn, job, host.name, newest.path());
      look = job.path_looks.find(host.name);
    }
    const PathLook& asked = look->second;
    if (asked.answer.has_value() && asked.answer->there()) continue;
    awaited |= !asked.answer.has_value() && turn.now - asked.asked_at < kAnswerWait;
    without.push_back(host.name.value());
    told.push_back(absl::StrCat(host.name.value(), " (",
                                asked.answer.has_value() ? asked.answer->note() : "does not answer", ")"));
  }
  if (CouldRunWithout(turn.now, turn.state, job, without)) return true;
  if (awaited || job.kept_told) return false;
  job.kept_told = true;
  turn.Decide(
      job, DecisionRule::kAbandon, NoticeLevel::kWarning,
      absl::StrCat("recovery.abandon_after_s has passed, but too few hosts could go on from the checkpoint of step ",
                   newest.step(), ": ", newest.path(), " is not on ",
                   told.empty() ? "any that is attached" : JoinFirst(told, kHostsNamed),
                   "; the job is left to its hosts, where it may still train (trainctl drain HOST --lost gives "
                   "them up)"));
  return false;
}

void StopLooking(Turn& turn, Job& job) {
  job.kept_told = false;
  if (turn.state.looking.erase(job.id) == 0) return;
  for (const auto& [name, look] : job.path_looks) turn.Push(name);
  job.path_looks.clear();
}

void NotePaths(Turn& turn, const HostName& host, const v1::RankReports& reports) {
  for (const v1::PathAnswer& answer : reports.paths()) {
    for (const JobId& id : turn.state.looking) {
      Job& job = turn.state.jobs.at(id);
      auto look = job.path_looks.find(host);
      if (look == job.path_looks.end() || look->second.request_id != answer.request_id()) continue;
      if (!look->second.answer.has_value()) turn.Push(host);  // it need not say it again
      look->second.answer = answer;
      look->second.answer->set_note(CutText(answer.note(), kNoteBytes));
    }
  }
}

}  // namespace trainyard
