// SubmitJob: checks, resolves and records a job, answers, and places it immediately if there are slots.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/hash.h"
#include "common/limits.h"
#include "common/plural.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/answer_for_job.h"
#include "coordinator/handlers/check_request.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/policy/goodput.h"
#include "coordinator/policy/queue_rules.h"
#include "coordinator/store/store.h"
#include "spec/prepare.h"

namespace trainyard {
namespace {

// Jobs take minutes or more, so an earlier retry would rarely help.
constexpr absl::Duration kTooManyJobsRetry = absl::Seconds(10);

// PrepareJob refuses larger jobs. 128 KiB are for grants, avoided hosts and everything else that is not checkpoints.
static_assert(limits::kJobRecordBytes + limits::kCheckpointRecordBytes + (128 << 10) <= Store::kEntryBytesMax);

absl::Status CheckState(const State& state, const JobId& id) {
  for (const auto& [name, host] : state.hosts) {
    const auto is_its = [&](const v1::TrainerKey& key) { return key.job_id() == id.value(); };
    if (std::any_of(host.unknown.begin(), host.unknown.end(), is_its) ||
        std::any_of(host.strays.begin(), host.strays.end(), is_its)) {
      return AddReason(
          absl::AlreadyExistsError(absl::StrCat("host ", name.value(), " runs trainers of a job ", id.value(),
                                                " that this coordinator does not know; choose another id, or omit it")),
          reasons::kJobIdInUse);
    }
  }
  if (state.forgotten_ids.contains(id)) {
    return AddReason(absl::AlreadyExistsError(absl::StrCat("job ", id.value(),
                                                           " was submitted before and has been "
                                                           "deleted from the history, so it is not submitted again; "
                                                           "choose another id, or omit it")),
                     reasons::kJobDeleted);
  }
  size_t unfinished = state.jobs.size() - state.finished.size();
  if (unfinished >= limits::kJobsUnfinished) {
    return AddRetry(AddReason(absl::ResourceExhaustedError(absl::StrCat(Plural(unfinished, "job is", "jobs are"),
                                                                        " unfinished, which is the limit; wait, or "
                                                                        "cancel some")),
                              reasons::kTooManyJobs),
                    kTooManyJobsRetry);
  }
  return absl::OkStatus();
}

absl::Status CheckQueue(const State& state, const v1::JobSpec& spec) {
  const QueueRules& rules = state.options.queue;
  SubmissionFacts facts{
      .name = spec.namespace_(),
      .priority = spec.priority(),
      .min_ranks = spec.command().has_min_ranks() ? spec.command().min_ranks() : spec.resources().ranks(),
      .needs_gpu = spec.resources().device() == v1::DEVICE_CUDA,
      .queued = state.queue.size(),
      .queued_in_pool = 0,
      .is_new_namespace = !state.unfinished.contains(spec.namespace_()),
      .namespaces = state.unfinished.size()};
  const std::string pool = PoolOf(rules, facts.name);
  for (const auto& [name, count] : state.queued) facts.queued_in_pool += PoolOf(rules, name) == pool ? count : 0;
  absl::Status status = CheckSubmission(rules, facts);
  if (absl::IsFailedPrecondition(status)) return AddReason(std::move(status), reasons::kNamespaceLimit);
  if (!status.ok()) status = AddRetry(AddReason(std::move(status), reasons::kTooManyJobs), kTooManyJobsRetry);
  return status;
}

v1::SubmitResponse MakeResponse(const Job& job) {
  v1::SubmitResponse response;
  response.set_job_id(job.id.value());
  *response.mutable_resolved() = job.head().spec();
  *response.mutable_decisions() = job.head().decisions();
  *response.mutable_warnings() = job.head().warnings();
  return response;
}

Job MakeNewJob(const Turn& turn, const v1::SubmitRequest& request, const JobId& id, PreparedJob prepared) {
  Job job;
  job.id = id;
  v1::Job& head = job.head();
  head.set_job_id(id.value());
  *head.mutable_spec() = std::move(prepared.spec);
  head.set_state(v1::JOB_STATE_QUEUED);
  head.set_submitted_unix_ms(absl::ToUnixMillis(turn.wall));
  for (v1::ResolvedKey& decision : prepared.decisions) *head.add_decisions() = std::move(decision);
  for (std::string& warning : prepared.warnings) head.add_warnings(std::move(warning));
  head.set_spec_digest(prepared.digest);
  head.set_resume(request.resume());
  head.set_allow_fresh_start(request.allow_fresh_start());
  *job.record.mutable_goodput() = BeginGoodput(absl::ToUnixMillis(turn.steady));
  job.record.mutable_goodput()->set_wall_ahead_ms(absl::ToInt64Milliseconds(turn.wall - turn.steady));
  head.set_priority(head.spec().priority());
  job.record.set_spec_bytes(std::move(prepared.bytes));
  return job;
}

}  // namespace

void Run(Turn& turn, SubmitJob& event) {
  State& state = turn.state;
  const v1::SubmitRequest& request = event.request;
  if (absl::Status status = CheckRequest(request); !status.ok()) {
    turn.Emit(Reply{event.call, std::move(status), {}});
    return;
  }
  JobId id = request.job_id().empty() ? event.fallback_id : JobId(request.job_id());
  std::string request_digest = HashHex(request.SerializeAsString());
  if (auto it = state.jobs.find(id); it != state.jobs.end()) {
    if (it->second.record.request_digest() == request_digest) {
      return turn.Emit(Reply{event.call, absl::OkStatus(), MakeResponse(it->second)});
    }
    absl::Status status =
        absl::AlreadyExistsError(absl::StrCat("job_id ", id.value(),
                                              " was used for another request, which differs in "
                                              "the job, its folder or its options; choose another id, or omit it"));
    return turn.Emit(Reply{event.call, AboutJob(AddReason(std::move(status), reasons::kJobIdInUse), it->second), {}});
  }
  if (absl::Status status = CheckState(state, id); !status.ok()) {
    return turn.Emit(Reply{event.call, AddMetadata(std::move(status), "job_id", id.value()), {}});
  }
  auto prepared = PrepareJob(request.spec(), {.job_id = id.value(), .default_run_root = request.default_run_root()});
  if (!prepared.ok()) {
    turn.Emit(Reply{event.call, prepared.status(), {}});
    return;
  }
  if (!prepared->spec.on_end().webhook().empty() && !state.options.webhooks) {
    absl::Status status = absl::FailedPreconditionError(
        "on_end.webhook: this coordinator sends no webhooks (--no-webhooks, or "
        "webhooks: false in its configuration); remove the key");
    return turn.Emit(Reply{event.call, AddReason(std::move(status), reasons::kWebhooksDisabled), {}});
  }
  if (absl::Status status = CheckQueue(state, prepared->spec); !status.ok()) {
    turn.Emit(Reply{event.call, std::move(status), {}});
    return;
  }
  Job& job = state.jobs.emplace(id, MakeNewJob(turn, request, id, *std::move(prepared))).first->second;
  job.record.set_request_digest(std::move(request_digest));
  job.record.set_submit_index(state.next_submit_index++);
  state.by_submission[job.record.submit_index()] = id;
  ++state.unfinished[job.namespace_name()];
  turn.Enqueue(job);
  turn.Save(job);
  turn.SetReason(job, "accepted");
  Recorded(turn, job, "submit", event.by, absl::OkStatus()).IgnoreError();
  turn.Info(absl::StrCat("job ", id.value(), " (", job.head().spec().name(),
                         ") accepted: ", Plural(job.world_size(), "rank"), ", digest ", job.head().spec_digest()));
  turn.Emit(Reply{event.call, absl::OkStatus(), MakeResponse(job)});
  turn.Schedule(job);
}

}  // namespace trainyard
