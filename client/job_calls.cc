#include "client/job_calls.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/text.h"
#include "common/error_details.h"
#include "common/limits.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

constexpr int kTries = 4;
constexpr size_t kPage = 1000;

void SetDeadline(grpc::ClientContext& context) { context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTimeout)); }

// Makes a unary call, at most kTries times until it is answered. Every request can be repeated; with expected_version
// and without request_id, a repeated request fails if the first one took effect although its answer was lost. Sets
// `sent` to the number of requests that were sent.
template <typename Request, typename Response, typename Method>
absl::StatusOr<Response> Call(Connection& connection, const Request& request, Method method, int* sent = nullptr) {
  absl::Duration pause = limits::kReconnectMin;
  for (int i = 1;; ++i) {
    grpc::ClientContext context;
    SetDeadline(context);
    Response response;
    absl::StatusOr<Connection::Stub> stub = connection.Begin(context);
    absl::Status status = stub.status();
    if (stub.ok() && sent != nullptr) ++*sent;
    if (stub.ok()) status = connection.ToStatus(((**stub).*method)(&context, request, &response), context);
    if (status.ok()) return response;
    if (!absl::IsUnavailable(status) || i == kTries) return status;
    absl::SleepFor(std::max(pause, std::min(RetryDelayOf(status).value_or(pause), limits::kReconnectMax)));
    pause = std::min(pause * 2, limits::kReconnectMax);
  }
}

// Makes a call whose request may have a request_id. An older coordinator refuses a request with a field that it does
// not know, and then gets the request without the id. A refused request has had no effect, so another invalid field
// only leads to the same refusal.
template <typename Request, typename Method>
absl::StatusOr<v1::Job> CallWithId(Connection& connection, Request request, Method method) {
  absl::StatusOr<v1::Job> job = Call<Request, v1::Job>(connection, request, method);
  if (request.request_id().empty() || !absl::IsInvalidArgument(job.status())) return job;
  request.clear_request_id();
  return Call<Request, v1::Job>(connection, request, method);
}

}  // namespace

absl::StatusOr<v1::SubmitResponse> SubmitJob(Connection& connection, const v1::SubmitRequest& request) {
  return Call<v1::SubmitRequest, v1::SubmitResponse>(connection, request, &v1::JobService::StubInterface::Submit);
}

absl::StatusOr<v1::FindJobsResponse> FindJobs(Connection& connection, const v1::FindJobsRequest& request) {
  return Call<v1::FindJobsRequest, v1::FindJobsResponse>(connection, request, &v1::JobService::StubInterface::FindJobs);
}

absl::StatusOr<v1::Job> GetJob(Connection& connection, const std::string& job_id) {
  v1::GetRequest request;
  request.set_job_id(job_id);
  return Call<v1::GetRequest, v1::Job>(connection, request, &v1::JobService::StubInterface::Get);
}

absl::StatusOr<v1::Job> CancelJob(Connection& connection, const v1::CancelRequest& request) {
  return Call<v1::CancelRequest, v1::Job>(connection, request, &v1::JobService::StubInterface::Cancel);
}

absl::StatusOr<v1::Job> CancelJob(Connection& connection, const std::string& job_id, const std::string& reason) {
  v1::CancelRequest request;
  request.set_job_id(job_id);
  request.set_reason(reason);
  return CancelJob(connection, request);
}

absl::StatusOr<v1::Job> RestartJob(Connection& connection, const v1::RestartRequest& request) {
  return CallWithId(connection, request, &v1::JobService::StubInterface::Restart);
}

absl::StatusOr<v1::Job> PauseJob(Connection& connection, const v1::PauseRequest& request) {
  return Call<v1::PauseRequest, v1::Job>(connection, request, &v1::JobService::StubInterface::Pause);
}

absl::StatusOr<v1::Job> SaveJob(Connection& connection, const v1::SaveRequest& request) {
  return CallWithId(connection, request, &v1::JobService::StubInterface::Save);
}

absl::StatusOr<v1::Job> ResumeJob(Connection& connection, const v1::ResumeRequest& request) {
  return Call<v1::ResumeRequest, v1::Job>(connection, request, &v1::JobService::StubInterface::Resume);
}

absl::StatusOr<v1::Job> SetJobPriority(Connection& connection, const v1::SetPriorityRequest& request) {
  return Call<v1::SetPriorityRequest, v1::Job>(connection, request, &v1::JobService::StubInterface::SetPriority);
}

absl::StatusOr<v1::ListHostsResponse> ListHosts(Connection& connection) {
  v1::ListHostsResponse hosts;
  v1::ListHostsRequest request;
  do {
    auto page = Call<v1::ListHostsRequest, v1::ListHostsResponse>(connection, request,
                                                                  &v1::JobService::StubInterface::ListHosts);
    if (!page.ok()) return page.status();
    for (v1::HostStatus& host : *page->mutable_hosts()) *hosts.add_hosts() = std::move(host);
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return hosts;
}

absl::StatusOr<v1::HostStatus> SetHost(Connection& connection, const v1::SetHostRequest& request) {
  int sent = 0;
  absl::StatusOr<v1::HostStatus> host =
      Call<v1::SetHostRequest, v1::HostStatus>(connection, request, &v1::JobService::StubInterface::SetHost, &sent);
  const bool forgets = request.action() == v1::SetHostRequest::ACTION_FORGET;
  if (!forgets || sent <= 1 || !absl::IsNotFound(host.status())) return host;
  // An earlier try has removed the host, but its answer was lost.
  v1::HostStatus forgotten;
  forgotten.set_name(request.name());
  return forgotten;
}

absl::StatusOr<v1::ListEventsResponse> ListEvents(Connection& connection, v1::ListEventsRequest request) {
  v1::ListEventsResponse events;
  while (true) {
    auto page = Call<v1::ListEventsRequest, v1::ListEventsResponse>(connection, request,
                                                                    &v1::JobService::StubInterface::ListEvents);
    if (!page.ok()) return page.status();
    if (events.events().empty()) events.set_dropped(page->dropped());
    for (v1::Event& event : *page->mutable_events()) *events.add_events() = std::move(event);
    request.set_page_token(page->next_page_token());
    if (page->next_page_token().empty() || page->events().empty()) return events;
  }
}

absl::StatusOr<v1::ServerInfo> GetServerInfo(Connection& connection) {
  return Call<v1::GetServerInfoRequest, v1::ServerInfo>(connection, {}, &v1::JobService::StubInterface::GetServerInfo);
}

absl::StatusOr<std::vector<v1::Job>> ListJobs(Connection& connection, const std::vector<v1::JobState>& states,
                                              size_t max, const std::string& namespace_name) {
  std::vector<v1::Job> jobs;
  v1::ListRequest request;
  request.set_namespace_(namespace_name);
  for (v1::JobState state : states) request.add_states(state);
  while (jobs.size() < max) {
    request.set_page_size(static_cast<uint32_t>(std::min(kPage, max - jobs.size())));
    auto page = Call<v1::ListRequest, v1::ListResponse>(connection, request, &v1::JobService::StubInterface::List);
    if (!page.ok()) return page.status();
    for (v1::Job& job : *page->mutable_jobs()) jobs.push_back(std::move(job));
    request.set_page_token(page->next_page_token());
    if (page->next_page_token().empty() || page->jobs().empty()) break;
  }
  return jobs;
}

absl::StatusOr<v1::GetQueueResponse> GetQueue(Connection& connection, const std::string& namespace_name,
                                              uint32_t limit) {
  v1::GetQueueResponse queue;
  v1::GetQueueRequest request;
  request.set_namespace_(namespace_name);
  const uint32_t max = limit == 0 ? std::numeric_limits<uint32_t>::max() : limit;
  while (true) {
    const uint32_t have = static_cast<uint32_t>(queue.jobs_size());
    request.set_page_size(static_cast<uint32_t>(std::min<size_t>(kPage, max - have)));
    auto page =
        Call<v1::GetQueueRequest, v1::GetQueueResponse>(connection, request, &v1::JobService::StubInterface::GetQueue);
    if (!page.ok()) return page.status();
    for (v1::QueuedJob& job : *page->mutable_jobs()) *queue.add_jobs() = std::move(job);
    queue.set_total(page->total());
    *queue.mutable_namespaces() = std::move(*page->mutable_namespaces());
    request.set_page_token(page->next_page_token());
    const bool done = page->next_page_token().empty() || static_cast<uint32_t>(queue.jobs_size()) >= max;
    if (done) return queue;
  }
}

absl::Status SubmitError(const absl::Status& status, absl::string_view job_id, absl::string_view advice) {
  if (!IsUnanswered(status)) return status;
  return StatusBuilder(status) << "the job may have been submitted as " << job_id << ": " << advice;
}

std::string JobTitle(const v1::Job& job) {
  constexpr size_t kNameBytes = 200;
  if (job.spec().name().empty()) return absl::StrCat("job ", job.job_id());  // a job that the coordinator does not know
  return absl::StrCat("job ", job.job_id(), " (", Printable(job.spec().name(), kNameBytes), ")");
}

bool HasHiddenSpec(const v1::Job& job) {
  return !job.spec().has_train() && !job.spec().has_command() && !job.spec().has_probe();
}

std::string RanksText(const v1::Job& job) {
  const uint32_t ranks = job.spec().resources().ranks();
  const v1::Command& command = job.spec().command();
  if (!command.has_min_ranks() || command.min_ranks() == ranks) return absl::StrCat(ranks);
  if (job.current_ranks() > 0) return absl::StrCat(job.current_ranks(), " of ", ranks);
  return absl::StrCat(command.min_ranks(), " to ", ranks);
}

const v1::CheckpointInfo* NewestConfirmed(const v1::Job& job) {
  for (auto info = job.checkpoints().rbegin(); info != job.checkpoints().rend(); ++info) {
    if (!info->unconfirmed()) return &*info;
  }
  return nullptr;
}

std::vector<std::string> LastLogLines(Connection& connection, const v1::Job& job, uint32_t rank, uint32_t lines) {
  grpc::ClientContext context;
  // The job has already failed; its last output lines are worth only a short wait.
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(3)));
  v1::LogsRequest request;
  request.set_job_id(job.job_id());
  request.add_ranks(rank);
  request.set_tail_lines(lines);
  std::vector<std::string> texts;
  absl::StatusOr<Connection::Stub> stub = connection.Begin(context);
  if (!stub.ok()) return texts;
  auto reader = (*stub)->Logs(&context, request);
  v1::LogLine line;
  // Read to the end even if the coordinator sends more lines than requested, because the last lines are needed.
  while (reader->Read(&line)) {
    // Leave out the lines of earlier generations, which did not make the job fail.
    if (line.generation() != job.generation()) continue;
    texts.push_back(line.text());
    if (texts.size() > lines) texts.erase(texts.begin());
  }
  reader->Finish();
  return texts;
}

}  // namespace trainyard::client
