#include "coordinator/handlers/answer_for_job.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/error_details.h"
#include "common/nearest_name.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/hold_jobs.h"
#include "coordinator/handlers/job_status.h"
#include "coordinator/policy/lifecycle.h"

namespace trainyard {
namespace {

// The number of requests that a job remembers. A caller repeats a request within minutes.
constexpr int kRequestIdsMax = 8;

bool HasCarriedOut(const Job& job, const std::string& request) {
  const auto& requests = job.record.request_ids();
  return std::find(requests.begin(), requests.end(), request) != requests.end();
}

void RememberRequest(Turn& turn, Job& job, const std::string& request) {
  job.record.add_request_ids(request);
  auto& ids = *job.record.mutable_request_ids();
  if (ids.size() > kRequestIdsMax) ids.erase(ids.begin());
  turn.Save(job);
}

}  // namespace

std::string WithReason(absl::string_view what, const std::string& reason) {
  return reason.empty() ? std::string(what) : absl::StrCat(what, ": ", CutText(reason, 1024));
}

absl::Status CheckVersion(absl::string_view what, uint64_t version, uint64_t expected) {
  if (expected == 0 || expected == version) return absl::OkStatus();
  return AddReason(absl::AbortedError(absl::StrCat(what, " has version ", version, ", not ", expected,
                                                   ": it has changed since it was read; read it again and decide "
                                                   "anew")),
                   reasons::kVersionMismatch);
}

absl::Status AboutJob(absl::Status status, const Job& job) {
  if (status.ok()) return status;
  status = AddMetadata(std::move(status), "job_id", job.id.value());
  status = AddMetadata(std::move(status), "state", StateName(job.state()));
  status = AddMetadata(std::move(status), "generation", absl::StrCat(job.head().generation()));
  return AddMetadata(std::move(status), "resource_version", absl::StrCat(job.version()));
}

absl::Status Recorded(Turn& turn, Job& job, absl::string_view what, const std::string& by, absl::Status status) {
  if (status.ok() && !by.empty()) {
    turn.Decide(job, DecisionRule::kOperator, NoticeLevel::kInfo, absl::StrCat(what, " requested by ", by));
  }
  return status;
}

absl::Status NoSuchJob(const State& state, const std::string& job_id) {
  const auto not_found = [&](const std::string& message, const char* reason = reasons::kJobNotFound) {
    return AddMetadata(AddResource(AddReason(absl::NotFoundError(message), reason), "job", job_id), "job_id", job_id);
  };
  const std::string name = job_id.substr(0, 64);
  if (std::vector<std::string> hosts = HostsWithUnknown(state, JobId(job_id)); !hosts.empty()) {
    return not_found(absl::StrCat("job ", job_id, " runs on ", absl::StrJoin(hosts, ", "),
                                  ", but this coordinator's store, restored from an older copy, does not "
                                  "know it; wait for its end, or end it with `trainctl cancel ",
                                  job_id, "`"));
  }
  if (state.forgotten_ids.contains(JobId(job_id))) {
    return not_found(absl::StrCat("job ", job_id, " is no longer in the history, which keeps the last ",
                                  state.options.finished_jobs, " jobs that have ended (finished_jobs)"),
                     reasons::kJobDeleted);
  }
  std::vector<std::string> ids;
  for (const auto& [id, job] : state.jobs) {
    if (job.head().spec().name() == job_id) {
      return not_found(absl::StrCat("no job ", name, "; job ", id.value(), " has that name: give its id instead"));
    }
    ids.push_back(id.value());
  }
  std::string nearest = NearestName(name, ids);
  return not_found(absl::StrCat("no job ", name, nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

void AnswerForJob(Turn& turn, CallId call, const std::string& job_id, uint64_t expected_version,
                  absl::FunctionRef<absl::Status(Job&)> act) {
  auto it = turn.state.jobs.find(JobId(job_id));
  if (it == turn.state.jobs.end()) return turn.Emit(Reply{call, NoSuchJob(turn.state, job_id), {}});
  Job& job = it->second;
  absl::Status status = CheckVersion(absl::StrCat("job ", job_id), job.version(), expected_version);
  if (status.ok()) status = act(job);
  if (!status.ok()) return turn.Emit(Reply{call, AboutJob(std::move(status), job), {}});
  turn.Emit(Reply{call, absl::OkStatus(), MakeJob(turn, job)});
}

void AnswerOnceForJob(Turn& turn, CallId call, const std::string& job_id, uint64_t expected_version,
                      absl::string_view what, const std::string& request_id,
                      absl::FunctionRef<absl::Status(Job&)> act) {
  if (request_id.empty()) return AnswerForJob(turn, call, job_id, expected_version, act);
  const std::string request = absl::StrCat(what, " ", request_id);
  auto it = turn.state.jobs.find(JobId(job_id));
  if (it != turn.state.jobs.end() && HasCarriedOut(it->second, request)) {
    return turn.Emit(Reply{call, absl::OkStatus(), MakeJob(turn, it->second)});
  }
  AnswerForJob(turn, call, job_id, expected_version, [&](Job& job) {
    absl::Status status = act(job);
    if (status.ok()) RememberRequest(turn, job, request);
    return status;
  });
}

}  // namespace trainyard
