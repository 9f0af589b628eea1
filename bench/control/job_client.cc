#include "bench/control/job_client.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc_credentials.h"
#include "common/status_macros.h"

namespace trainyard::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

absl::Status ToStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

void SetDeadline(grpc::ClientContext& context) { context.set_deadline(absl::ToChronoTime(absl::Now() + kTimeout)); }

// A minimal model, because it is not trained.
v1::JobSpec MakeSpec(uint32_t ranks) {
  v1::JobSpec spec;
  spec.set_name("bench");
  v1::Train& train = *spec.mutable_train();
  train.mutable_model()->set_layers(1);
  train.mutable_model()->set_heads(1);
  train.mutable_model()->set_width(8);
  train.mutable_model()->set_context(8);
  train.mutable_data()->add_text("/bench/data");
  train.mutable_batch()->set_global_size(ranks);
  train.set_steps(1);
  spec.mutable_resources()->set_ranks(ranks);
  spec.mutable_resources()->set_device(v1::DEVICE_CPU);
  spec.mutable_recovery()->set_max_restarts(0);
  spec.mutable_checkpoint()->set_dir("/bench/run");
  return spec;
}

}  // namespace

JobClient::JobClient(const std::string& coordinator)
    : stub_(v1::JobService::NewStub(grpc::CreateChannel(coordinator, MakeChannelCredentials()))) {}

absl::StatusOr<std::string> JobClient::Submit(uint32_t ranks) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::SubmitRequest request;
  *request.mutable_spec() = MakeSpec(ranks);
  v1::SubmitResponse response;
  RETURN_IF_ERROR(ToStatus(stub_->Submit(&context, request, &response))) << "while submitting a job";
  return response.job_id();
}

absl::Status JobClient::Cancel(const std::string& job) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::CancelRequest request;
  request.set_job_id(job);
  request.set_reason("the benchmark no longer needs this job");
  v1::Job response;
  return ToStatus(stub_->Cancel(&context, request, &response));
}

absl::StatusOr<v1::Job> JobClient::Get(const std::string& job) {
  grpc::ClientContext context;
  SetDeadline(context);
  context.set_wait_for_ready(true);
  v1::GetRequest request;
  request.set_job_id(job);
  v1::Job response;
  RETURN_IF_ERROR(ToStatus(stub_->Get(&context, request, &response)));
  return response;
}

absl::StatusOr<v1::JobState> JobClient::AwaitEnd(const std::string& job) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchRequest request;
  request.set_job_id(job);
  auto reader = stub_->Watch(&context, request);
  v1::Event event;
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  std::string reason;
  while (reader->Read(&event)) {
    if (!event.has_state()) continue;
    state = event.state().state();
    reason = event.state().reason();
  }
  RETURN_IF_ERROR(ToStatus(reader->Finish()))
      << "while watching job " << job << ", " << v1::JobState_Name(state) << ": " << reason;
  return state;
}

absl::Status JobClient::AwaitHosts(uint32_t hosts) {
  absl::Time deadline = absl::Now() + kTimeout;
  uint32_t attached = 0;
  while (absl::Now() < deadline) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::ServerInfo info;
    RETURN_IF_ERROR(ToStatus(stub_->GetServerInfo(&context, {}, &info)));
    attached = info.hosts();
    if (attached == hosts) return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat(attached, " hosts are attached, expected ", hosts));
}

}  // namespace trainyard::bench
