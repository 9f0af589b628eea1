// Requests that a real coordinator refuses: the status code and the details that the caller receives.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/unit/coordinator/rpc_fixture.h"

namespace trainyard {
namespace {

using RefusalTest = RpcTest;

TEST_F(RefusalTest, UnknownJob_IsNotFound_AndAStreamWithoutAHelloIsInvalid) {
  grpc::ClientContext context;
  v1::GetRequest request;
  request.set_job_id("nosuchjob");
  v1::Job job;
  EXPECT_EQ(jobs_->Get(&context, request, &job).error_code(), grpc::StatusCode::NOT_FOUND);
  StreamHost first(channel_);
  ASSERT_TRUE(first.AwaitDesired([](const v1::DesiredState&) { return true; }));
  auto agent = v1::AgentService::NewStub(channel_);
  grpc::ClientContext attach_context;
  auto stream = agent->Attach(&attach_context);
  stream->Write(v1::AgentMessage());
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "a stream without a hello";
}

// The violations in the details of a refusal, by field. They are the first detail; the reason follows.
std::map<std::string, std::string> ViolationsOf(const grpc::Status& status) {
  google::rpc::Status detailed;
  google::rpc::BadRequest details;
  std::map<std::string, std::string> violations;
  if (!detailed.ParseFromString(status.error_details()) || detailed.details_size() != 2) return violations;
  EXPECT_EQ(detailed.code(), static_cast<int>(status.error_code()));
  EXPECT_EQ(detailed.message(), status.error_message());
  EXPECT_TRUE(detailed.details(0).UnpackTo(&details));
  for (const auto& violation : details.field_violations()) violations[violation.field()] = violation.description();
  return violations;
}

TEST_F(RefusalTest, RefusedSpec_HasAViolationPerField) {
  v1::SubmitRequest request;
  *request.mutable_spec() = MakeSpec(2);
  request.set_default_run_root("/runs");
  request.mutable_spec()->mutable_train()->mutable_batch()->set_global_size(0);
  request.mutable_spec()->mutable_parallel()->set_data(static_cast<v1::DataParallel>(99));
  grpc::ClientContext context;
  v1::SubmitResponse response;

  grpc::Status status = jobs_->Submit(&context, request, &response);

  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(ViolationsOf(status),
              ::testing::UnorderedElementsAre(
                  ::testing::Pair("spec.train.batch.global_size", "must be from 1 to 16777216, found 0"),
                  ::testing::Pair("spec.parallel.data",
                                  "expected one of ddp, zero1, zero2, zero3, fsdp, hsdp, found the unknown value 99")));
}

TEST_F(RefusalTest, RefusalWithAllProblems_FitsIntoTheHeaders) {
  v1::SubmitRequest request;
  *request.mutable_spec() = MakeSpec(2);
  for (int i = 0; i < 200; ++i) request.mutable_spec()->mutable_resources()->add_hosts(absl::StrCat("ü %\t", i));
  for (int i = 0; i < 200; ++i) request.mutable_spec()->mutable_train()->add_freeze(absl::StrCat("ü%", i));
  request.mutable_spec()->mutable_train()->mutable_data()->add_text("relative");
  grpc::ClientContext context;
  v1::SubmitResponse response;

  grpc::Status status = jobs_->Submit(&context, request, &response);

  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_FALSE(ViolationsOf(status).empty());
}

TEST_F(RefusalTest, StreamsAreRefusedLikeCalls) {
  v1::WatchRequest watch;
  grpc::ClientContext watch_context;
  grpc::Status status = jobs_->Watch(&watch_context, watch)->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ViolationsOf(status).count("job_id"), 1u);
  v1::LogsRequest logs;
  logs.set_job_id(kJob);
  logs.add_ranks(70'000);
  grpc::ClientContext logs_context;
  EXPECT_EQ(jobs_->Logs(&logs_context, logs)->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace trainyard
