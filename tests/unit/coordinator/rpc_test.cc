// A complete coordinator in this process, on a free port, with real clients: a program that submits and watches, and a
// daemon that uses the stream. The handlers' decisions are tested elsewhere; these tests check their transport.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/files.h"
#include "common/limits.h"
#include "common/rpc_answer.h"
#include "coordinator/store/store.h"
#include "tests/unit/coordinator/rpc_fixture.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

TEST_F(RpcTest, JobRunsToItsEnd_AndAWatcherSeesEveryStepOnce) {
  StreamHost host(channel_);
  ASSERT_TRUE(host.AwaitDesired([](const v1::DesiredState&) { return true; }));
  absl::Time begin = absl::Now();
  ASSERT_TRUE(Submit().ok());
  BringToRunning(host);
  RecordProperty("submit_to_go_us", static_cast<int>(absl::ToInt64Microseconds(absl::Now() - begin)));
  std::vector<v1::Event> events;
  std::thread watcher([&] {
    v1::WatchRequest request;
    request.set_job_id(kJob);
    grpc::ClientContext context;
    auto reader = jobs_->Watch(&context, request);
    for (v1::Event event; reader->Read(&event);) events.push_back(event);
    EXPECT_TRUE(reader->Finish().ok());
  });

  host.Report(10);
  v1::Fact fact;
  fact.mutable_saved()->set_step(10);
  fact.mutable_saved()->set_path("/runs/x/step-10");
  host.ReportFact(0, fact);
  fact.mutable_finished()->set_step(10);
  host.ReportFromAllRanks(fact);
  fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_EXIT);
  host.ReportFromAllRanks(fact);
  watcher.join();

  uint64_t steps = 0;
  for (const v1::Event& event : events) {
    if (!event.has_step()) continue;
    EXPECT_EQ(event.step().step(), ++steps);
  }
  EXPECT_EQ(steps, 10u);
  EXPECT_EQ(events.back().state().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(Get().ranks_size(), 2);
}

TEST_F(RpcTest, Values_AreSentBackOnTheStream_AndAllOfThemAgainAfterReattaching) {
  auto host = std::make_unique<StreamHost>(channel_);
  ASSERT_TRUE(Submit().ok());
  ASSERT_TRUE(host->AwaitDesired([](const v1::DesiredState& state) { return state.trainers_size() == 2; }));

  // The values do not fit into one message.
  std::map<std::string, std::string> put;
  for (int i = 0; i < 40; ++i) {
    put[absl::StrCat("rank-", i)] = std::string(limits::kStoreValueBytes - static_cast<size_t>(i), 'x');
  }
  host->Put(put);
  host->Put({{"rank-0", "another"}});

  EXPECT_EQ(host->AwaitValues(40), put);
  ASSERT_TRUE(host->AwaitRefusal());
  EXPECT_EQ(host->refused.name(), "rank-0");
  EXPECT_EQ(host->refused.code(), static_cast<uint32_t>(grpc::StatusCode::ALREADY_EXISTS));
  host = std::make_unique<StreamHost>(channel_);
  EXPECT_EQ(host->AwaitValues(40), put);
}

TEST_F(RpcTest, UnreadableMessage_EndsTheStream) {
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context, "/trainyard.v1.AgentService/Attach", &queue);
  grpc::Slice bytes("\x0a\xff\xff\xff");
  grpc::ByteBuffer message(&bytes, 1);
  grpc::Status status;
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  call->Write(message, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  call->Finish(&status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
}

TEST_F(RpcTest, Logs_TravelFromTheDaemonToTheReader) {
  StreamHost host(channel_);
  ASSERT_TRUE(Submit().ok());
  BringToRunning(host);
  std::vector<std::string> lines;
  std::thread reading([&] {
    v1::LogsRequest request;
    request.set_job_id(kJob);
    grpc::ClientContext context;
    auto reader = jobs_->Logs(&context, request);
    for (v1::LogLine line; reader->Read(&line);) lines.push_back(line.text());
    EXPECT_TRUE(reader->Finish().ok());
  });
  ASSERT_TRUE(host.AwaitDesired([](const v1::DesiredState& state) { return state.logs_size() == 1; }));
  auto agent = v1::AgentService::NewStub(channel_);
  grpc::ClientContext context;
  v1::PushLogsResponse response;
  auto push = agent->PushLogs(&context, &response);
  for (int i = 0; i < 3'000; ++i) {
    v1::LogChunk chunk;
    if (i == 0) chunk.set_request_id(host.desired.logs(0).request_id());
    chunk.add_lines()->set_text(absl::StrCat("line ", i));
    ASSERT_TRUE(push->Write(chunk));
  }
  push->WritesDone();
  EXPECT_TRUE(push->Finish().ok());
  reading.join();

  ASSERT_EQ(lines.size(), 3'000u);
  EXPECT_EQ(lines.back(), "line 2999");
}

TEST_F(RpcTest, Stop_EndsStreamsWithUnavailable_AndTheJobSurvivesARestart) {
  StreamHost host(channel_);
  ASSERT_TRUE(Submit().ok());
  ASSERT_TRUE(host.AwaitDesired([](const v1::DesiredState& state) { return state.trainers_size() == 2; }));
  grpc::ClientContext context;
  v1::WatchRequest request;
  request.set_job_id(kJob);
  auto reader = jobs_->Watch(&context, request);
  v1::Event event;
  ASSERT_TRUE(reader->Read(&event));

  coordinator_.reset();
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(host.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);

  Start();
  v1::Job job = Get();
  EXPECT_EQ(job.state(), v1::JOB_STATE_PLACED);
  EXPECT_TRUE(job.unconfirmed());
}

TEST_F(RpcTest, ReconnectedWatcher_GetsOnlyLaterSteps_AlsoAfterARestart) {
  StreamHost host(channel_);
  ASSERT_TRUE(Submit().ok());
  BringToRunning(host);
  host.Report(5);
  grpc::ClientContext first_context;
  v1::WatchRequest request;
  request.set_job_id(kJob);
  auto first = jobs_->Watch(&first_context, request);
  v1::Event event;
  while (request.after_step() < 3) {
    ASSERT_TRUE(first->Read(&event));
    request.set_after_sequence(event.sequence());
    if (event.has_step()) request.set_after_step(event.step().step());
  }
  first_context.TryCancel();
  coordinator_.reset();
  Start();

  StreamHost again(channel_);
  ASSERT_TRUE(again.AwaitDesired([](const v1::DesiredState&) { return true; }));
  again.Report(6);
  grpc::ClientContext context;
  auto second = jobs_->Watch(&context, request);
  std::vector<uint64_t> steps;
  while (steps.size() < 3) {
    ASSERT_TRUE(second->Read(&event));
    if (event.has_step()) steps.push_back(event.step().step());
  }
  EXPECT_THAT(steps, ::testing::ElementsAre(4, 5, 6));
}

TEST_F(RpcTest, HostsAndEvents_AreListed) {
  StreamHost host(channel_);
  ASSERT_TRUE(Submit().ok());
  BringToRunning(host);
  grpc::ClientContext hosts_context;
  v1::ListHostsResponse hosts;
  ASSERT_TRUE(jobs_->ListHosts(&hosts_context, v1::ListHostsRequest(), &hosts).ok());
  ASSERT_EQ(hosts.hosts_size(), 1);
  EXPECT_EQ(hosts.hosts(0).name(), "w1");
  EXPECT_TRUE(hosts.hosts(0).attached());

  v1::ListEventsRequest request;
  request.set_job_id(kJob);
  grpc::ClientContext events_context;
  v1::ListEventsResponse events;
  ASSERT_TRUE(jobs_->ListEvents(&events_context, request, &events).ok());
  EXPECT_EQ(events.events().rbegin()->state().state(), v1::JOB_STATE_RUNNING);
  request.set_job_id("nosuchjob");
  grpc::ClientContext unknown_context;
  EXPECT_EQ(jobs_->ListEvents(&unknown_context, request, &events).error_code(), grpc::StatusCode::NOT_FOUND);
}

// Regression: trainctl reported that the coordinator did not answer.
TEST_F(RpcTest, LogsOfADetachedHost_ReportThatItIsDetached) {
  {
    StreamHost host(channel_);
    ASSERT_TRUE(Submit().ok());
    BringToRunning(host);
  }
  v1::ListHostsResponse hosts;
  do {
    grpc::ClientContext context;
    ASSERT_TRUE(jobs_->ListHosts(&context, v1::ListHostsRequest(), &hosts).ok());
  } while (hosts.hosts(0).attached());

  grpc::ClientContext context;
  v1::LogsRequest request;
  request.set_job_id(kJob);
  auto logs = jobs_->Logs(&context, request);
  v1::LogLine line;
  EXPECT_FALSE(logs->Read(&line));
  grpc::Status status = logs->Finish();

  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("host w1 is not attached"));
  EXPECT_TRUE(IsAnswered(status));
}

TEST_F(RpcTest, Jobs_AreFoundByAPrefixOfTheirId) {
  ASSERT_TRUE(Submit().ok());
  v1::FindJobsRequest request;
  request.set_text(std::string(kJob).substr(0, 4));
  grpc::ClientContext context;
  v1::FindJobsResponse found;
  ASSERT_TRUE(jobs_->FindJobs(&context, request, &found).ok());
  ASSERT_EQ(found.jobs_size(), 1);
  EXPECT_EQ(found.jobs(0).job_id(), kJob);
  grpc::ClientContext empty_context;
  EXPECT_EQ(jobs_->FindJobs(&empty_context, {}, &found).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcTest, SecondCoordinatorOnTheFolder_FailsToStart_AndTheFirstContinues) {
  CoordinatorOptions options;
  options.listen = "127.0.0.1:0";
  options.state = state_;
  options.allow_local_users = true;

  auto second = Coordinator::Start(options, Clock::GetRealClock(), [](const absl::Status&) { std::abort(); });

  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another coordinator uses this state folder"));
  EXPECT_TRUE(Submit().ok());
}

TEST_F(RpcTest, StoreThatCannotBeRead_FailsTheStart_AndItsBackupStays) {
  coordinator_->Stop();
  coordinator_.reset();
  const std::string store_path = folder_ / "store.db";
  const absl::StatusOr<std::string> backup = ReadFile(StoreBackupPath(store_path));
  ASSERT_TRUE(backup.ok()) << backup.status();
  {
    auto store = OpenSqliteStore(store_path);
    ASSERT_TRUE(store.ok()) << store.status();
    auto snapshot = (*store)->Load("");
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    const std::string unreadable = "\xff";
    ASSERT_TRUE((*store)->Commit({{"job/xxxxxxxx", unreadable}}, snapshot->revision).ok());
  }
  CoordinatorOptions options;
  options.listen = "127.0.0.1:0";
  options.state = state_;
  options.allow_local_users = true;

  auto started = Coordinator::Start(options, Clock::GetRealClock(), [](const absl::Status&) { std::abort(); });

  EXPECT_TRUE(absl::IsDataLoss(started.status())) << started.status();
  const absl::StatusOr<std::string> kept = ReadFile(StoreBackupPath(store_path));
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_TRUE(*kept == *backup) << "the store that could not be read has replaced the backup";
}

// Raw calls, as a client in another language sends them.
std::string CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                    const std::string& bytes) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::Slice slice(bytes);
  grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  std::vector<grpc::Slice> slices;
  if (!status.ok() || !response.Dump(&slices).ok()) return status.error_message();
  std::string text;
  for (const grpc::Slice& part : slices) text.append(reinterpret_cast<const char*>(part.begin()), part.size());
  return text;
}

TEST_F(RpcTest, HealthService_AnswersServing) {
  EXPECT_EQ(CallRaw(channel_, "/grpc.health.v1.Health/Check", ""), "\x08\x01");
  EXPECT_EQ(CallRaw(channel_, "/grpc.health.v1.Health/Check", "\x0a\x17trainyard.v1.JobService"), "\x08\x01");
}

TEST(ListenAddress, OtherThanLoopback_NeedsAllowPlaintext) {
  EXPECT_TRUE(CheckListenAddress({.listen = "127.0.0.1:7070", .allow_plaintext = false}).ok());
  EXPECT_TRUE(CheckListenAddress({.listen = "[::1]:0", .allow_plaintext = false}).ok());
  absl::Status refused = CheckListenAddress({.listen = "0.0.0.0:7070", .allow_plaintext = false});
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--allow-plaintext"));
  EXPECT_TRUE(CheckListenAddress({.listen = "0.0.0.0:7070", .allow_plaintext = true}).ok());
  EXPECT_FALSE(CheckListenAddress({.listen = "localhost", .allow_plaintext = false}).ok());
  EXPECT_FALSE(CheckListenAddress({.listen = "localhost:70000", .allow_plaintext = false}).ok());
  EXPECT_TRUE(CheckListenAddress({.listen = "unix:/run/x", .allow_plaintext = false}).ok());
  EXPECT_FALSE(CheckListenAddress({.listen = "unix:x", .allow_plaintext = false}).ok());
  EXPECT_FALSE(CheckListenAddress({.listen = "unix:/" + std::string(107, 'x'), .allow_plaintext = false}).ok());
}

}  // namespace
}  // namespace trainyard
