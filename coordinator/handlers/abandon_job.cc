#include "coordinator/handlers/abandon_job.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/plural.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/place_jobs.h"
#include "coordinator/handlers/slots.h"
#include "coordinator/policy/placement.h"
#include "coordinator/policy/saves.h"

namespace trainyard {
namespace {

// A host that has not answered within this time counts as one without the checkpoint.
constexpr absl::Duration kAnswerWait = absl::Seconds(5);
// The interval of queries to a host without the checkpoint, which may have it later.
constexpr absl::Duration kQueryInterval = absl::Minutes(1);
constexpr size_t kNoteBytes = 128;
constexpr size_t kMaxHostsNamed = 3;

void QueryPath(Turn& turn, Job& job, const HostName& name, const std::string& path) {
  job.path_queries[name] =
      PathQuery{.request_id = absl::StrCat(job.id.value(), ".", name.value(), ".", absl::ToUnixMillis(turn.now)),
                .path = path,
                .requested_at = turn.now,
                .answer = std::nullopt};
  turn.state.with_path_queries.insert(job.id);
  turn.Push(name);
}

bool NeedsQuery(const Turn& turn, const PathQuery& query, const std::string& path) {
  if (query.path != path) return true;
  return !(query.answer.has_value() && query.answer->there()) && turn.now - query.requested_at >= kQueryInterval;
}

// Returns the newest recorded checkpoint. If none is recorded, returns the newest granted one with the path of the run
// folder, because a granted checkpoint may not have its final name yet.
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
  // The program of a command finds out by itself what it resumes from.
  if (job.head().spec().has_command()) return true;
  // A job that was cancelled or has failed does not start again, so it needs no checkpoint.
  if (IsEndDecided(job)) return true;
  const v1::CheckpointInfo newest = NewestOf(job);
  if (newest.path().empty()) return true;  // the job starts from the beginning on any host
  std::vector<std::string> excluded;
  std::vector<std::string> descriptions;
  bool has_pending_answers = false;
  for (const HostSlots& host : FreeSlots(turn.state)) {
    if (!host.unusable.empty()) continue;
    auto query = job.path_queries.find(host.name);
    if (query == job.path_queries.end() || NeedsQuery(turn, query->second, newest.path())) {
      QueryPath(turn, job, host.name, newest.path());
      query = job.path_queries.find(host.name);
    }
    const PathQuery& sent = query->second;
    if (sent.answer.has_value() && sent.answer->there()) continue;
    has_pending_answers |= !sent.answer.has_value() && turn.now - sent.requested_at < kAnswerWait;
    excluded.push_back(host.name.value());
    descriptions.push_back(
        absl::StrCat(host.name.value(), " (", sent.answer.has_value() ? sent.answer->note() : "does not answer", ")"));
  }
  if (FitsWithout(turn.now, turn.state, job, excluded)) return true;
  if (has_pending_answers || job.abandon_refused) return false;
  job.abandon_refused = true;
  turn.Decide(job, DecisionRule::kAbandon, NoticeLevel::kWarning,
              absl::StrCat("recovery.abandon_after_s has passed, but too few hosts have the checkpoint of step ",
                           newest.step(), ": ", newest.path(), " is not on ",
                           descriptions.empty() ? "any attached host" : JoinFirst(descriptions, kMaxHostsNamed),
                           "; the job stays on its hosts, where it may still train (trainctl drain HOST --lost gives "
                           "them up)"));
  return false;
}

void EndPathQueries(Turn& turn, Job& job) {
  job.abandon_refused = false;
  if (turn.state.with_path_queries.erase(job.id) == 0) return;
  for (const auto& [name, query] : job.path_queries) turn.Push(name);
  job.path_queries.clear();
}

void RecordPathAnswers(Turn& turn, const HostName& host, const v1::RankReports& reports) {
  for (const v1::PathAnswer& answer : reports.paths()) {
    for (const JobId& id : turn.state.with_path_queries) {
      Job& job = turn.state.jobs.at(id);
      auto query = job.path_queries.find(host);
      if (query == job.path_queries.end() || query->second.request_id != answer.request_id()) continue;
      if (!query->second.answer.has_value()) turn.Push(host);  // the query leaves the desired state
      query->second.answer = answer;
      query->second.answer->set_note(CutText(answer.note(), kNoteBytes));
    }
  }
}

}  // namespace trainyard
