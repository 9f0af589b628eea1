// JobStream across lost connections and restarts of the coordinator, against a scripted coordinator.
#include "client/job_stream.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/job_calls.h"
#include "common/api_version.h"
#include "common/clock.h"
#include "common/tokens.h"
#include "tests/unit/client/events.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard::client {
namespace {

// Answers each Watch with the next act of a script: events, then a status.
class FakeCoordinator final : public v1::JobService::Service {
 public:
  struct Act {
    std::vector<v1::Event> events;
    grpc::Status status;
    bool hang = false;                             // the call waits until the caller cancels it
    absl::Duration served = absl::ZeroDuration();  // the call sends its metadata, and ends after this time
  };

  explicit FakeCoordinator(std::deque<Act> acts) : acts_(std::move(acts)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  // The positions after which the calls requested events: sequence numbers, steps, and steps of evaluations.
  std::vector<uint64_t> after_sequences() {
    absl::MutexLock lock(&mu_);
    return after_sequences_;
  }
  std::vector<uint64_t> after_steps() {
    absl::MutexLock lock(&mu_);
    return after_steps_;
  }
  std::vector<uint64_t> after_eval_steps() {
    absl::MutexLock lock(&mu_);
    return after_eval_steps_;
  }

  // The authorization headers of the calls.
  std::vector<std::string> authorizations() {
    absl::MutexLock lock(&mu_);
    return authorizations_;
  }
  // Writes a new token before the next call is rejected because of its token.
  void WriteTokenOnRefusal(const std::string& folder) {
    absl::MutexLock lock(&mu_);
    token_folder_ = folder;
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::Event>* writer) override {
    Act act;
    {
      absl::MutexLock lock(&mu_);
      after_sequences_.push_back(request->after_sequence());
      const auto& metadata = context->client_metadata();
      const auto token = metadata.find("authorization");
      authorizations_.push_back(token == metadata.end() ? "" : std::string(token->second.data(), token->second.size()));
      after_steps_.push_back(request->after_step());
      after_eval_steps_.push_back(request->after_eval_step());
      if (acts_.empty()) return grpc::Status(grpc::StatusCode::NOT_FOUND, "the script has ended");
      act = acts_.front();
      acts_.pop_front();
      if (act.status.error_code() == grpc::StatusCode::UNAUTHENTICATED && !token_folder_.empty()) {
        EXPECT_EQ(WriteToken(token_folder_, address(), "0123456789abcdef"), absl::OkStatus());
      }
    }
    if (act.served > absl::ZeroDuration()) {
      context->AddInitialMetadata(kServerHeader, "a coordinator");
      writer->SendInitialMetadata();
    }
    const absl::Time end = Clock::GetSteadyClock().TimeNow() + act.served;
    while (Clock::GetSteadyClock().TimeNow() < end) std::this_thread::yield();
    for (const v1::Event& event : act.events) writer->Write(event);
    // Waits until the test cancels the call.
    while (act.hang && !context->IsCancelled()) std::this_thread::yield();
    return act.status;
  }

  grpc::Status Submit(grpc::ServerContext*, const v1::SubmitRequest* request, v1::SubmitResponse* response) override {
    absl::MutexLock lock(&mu_);
    if (++submits_ < 3) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
    response->set_job_id(request->job_id());
    return grpc::Status::OK;
  }

  // Each host is removed by the first call, whose answer is lost.
  grpc::Status SetHost(grpc::ServerContext*, const v1::SetHostRequest* request, v1::HostStatus*) override {
    absl::MutexLock lock(&mu_);
    const bool is_first = removed_hosts_.insert(request->name()).second;
    return is_first ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down")
                    : grpc::Status(grpc::StatusCode::NOT_FOUND, "no host");
  }

  // A coordinator that does not know the field `request_id`.
  grpc::Status Restart(grpc::ServerContext*, const v1::RestartRequest* request, v1::Job* job) override {
    absl::MutexLock lock(&mu_);
    ++restarts_;
    if (!request->request_id().empty() || request->job_id().empty()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "holds field number 5, which this version does not know");
    }
    job->set_job_id(request->job_id());
    return grpc::Status::OK;
  }
  int restarts() {
    absl::MutexLock lock(&mu_);
    return restarts_;
  }

  grpc::Status List(grpc::ServerContext*, const v1::ListRequest* request, v1::ListResponse* response) override {
    const int first = request->page_token().empty() ? 0 : std::stoi(request->page_token());
    for (int i = first; i < first + 2 && i < 5; ++i) response->add_jobs()->set_job_id(absl::StrCat("job", i));
    if (first + 2 < 5) response->set_next_page_token(absl::StrCat(first + 2));
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  absl::Mutex mu_;
  std::deque<Act> acts_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> authorizations_ ABSL_GUARDED_BY(mu_);
  std::string token_folder_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> after_sequences_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> after_steps_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> after_eval_steps_ ABSL_GUARDED_BY(mu_);
  int submits_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<std::string> removed_hosts_ ABSL_GUARDED_BY(mu_);
  int restarts_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<grpc::Server> server_;
};

const grpc::Status kGoingDown(grpc::StatusCode::UNAVAILABLE, "going down");
const RetryOptions kFast = {
    .backoff_min = absl::Milliseconds(1), .backoff_max = absl::Milliseconds(2), .give_up_after = absl::Seconds(60)};

struct Followed {
  absl::StatusOr<v1::JobState> end = absl::UnknownError("not followed");
  std::vector<std::string> delivered;  // "s3" step 3, "e3" evaluation, "c3" checkpoint, "RUNNING"
  std::vector<std::string> notices;
};

Followed Follow(FakeCoordinator& coordinator, const RetryOptions& options = kFast) {
  Followed followed;
  auto connection = Connection::Open({.address = coordinator.address()}, absl::Seconds(10));
  EXPECT_TRUE(connection.ok()) << connection.status();
  JobStream stream(**connection, "k3x7q2ab", options);
  followed.end = stream.Follow(
      [&](const v1::Event& event) {
        if (event.has_step()) followed.delivered.push_back(absl::StrCat("s", event.step().step()));
        if (event.has_eval()) followed.delivered.push_back(absl::StrCat("e", event.eval().step()));
        if (event.has_checkpoint()) followed.delivered.push_back(absl::StrCat("c", event.checkpoint().step()));
        if (event.has_state()) followed.delivered.push_back(v1::JobState_Name(event.state().state()).substr(10));
      },
      [&](absl::string_view text) { followed.notices.emplace_back(text); });
  return followed;
}

const grpc::Status kNoToken(grpc::StatusCode::UNAUTHENTICATED, "another token");

TEST(JobStream, RestartedCoordinator_GetsItsNewToken) {
  const TemporaryFolder home;
  setenv("XDG_STATE_HOME", home.path().c_str(), 1);
  FakeCoordinator coordinator({{.events = {StateEvent(1, v1::JOB_STATE_RUNNING)}, .status = kGoingDown},
                               {.events = {}, .status = kNoToken},
                               {.events = {StateEvent(2, v1::JOB_STATE_SUCCEEDED)}, .status = grpc::Status::OK}});
  auto connection = Connection::Open({.address = coordinator.address()}, absl::Seconds(10));
  ASSERT_TRUE(connection.ok()) << connection.status();
  JobStream stream(**connection, "k3x7q2ab", kFast);

  auto end = stream.Follow([&](const v1::Event&) { coordinator.WriteTokenOnRefusal(*UserTokenFolder()); },
                           [](absl::string_view) {});

  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(coordinator.authorizations(), std::vector<std::string>({"", "", "Bearer 0123456789abcdef"}));
}

TEST(JobStream, RejectedCurrentToken_EndsTheStream) {
  const TemporaryFolder home;
  setenv("XDG_STATE_HOME", home.path().c_str(), 1);
  FakeCoordinator coordinator({{.events = {}, .status = kNoToken}});

  EXPECT_TRUE(absl::IsUnauthenticated(Follow(coordinator).end.status()));
}

TEST(JobStream, DeliversEveryEventOnceUpToTheFinalState) {
  FakeCoordinator coordinator({{.events = {StateEvent(1, v1::JOB_STATE_RUNNING), StepEvent(2, 1, 5), EvalEvent(3, 1, 5),
                                           CheckpointEvent(4, 1), StateEvent(5, v1::JOB_STATE_SUCCEEDED)},
                                .status = grpc::Status::OK}});

  Followed followed = Follow(coordinator);

  ASSERT_TRUE(followed.end.ok()) << followed.end.status();
  EXPECT_EQ(*followed.end, v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(followed.delivered, std::vector<std::string>({"RUNNING", "s1", "e1", "c1", "SUCCEEDED"}));
}

TEST(JobStream, LostConnection_ContinuesAfterTheLastEvent_WhenTheCoordinatorAnswersAgain) {
  FakeCoordinator coordinator(
      {{.events = {StepEvent(2, 1, 5), StepEvent(3, 2, 5)}, .status = kGoingDown},
       {.events = {}, .status = kGoingDown},
       {.events = {StepEvent(4, 3, 5), StateEvent(5, v1::JOB_STATE_FAILED)}, .status = grpc::Status::OK}});

  Followed followed = Follow(coordinator);

  ASSERT_TRUE(followed.end.ok()) << followed.end.status();
  EXPECT_EQ(followed.delivered, std::vector<std::string>({"s1", "s2", "s3", "FAILED"}));
  EXPECT_EQ(coordinator.after_sequences(), std::vector<uint64_t>({0, 3, 3}));
  ASSERT_EQ(followed.notices.size(), 2u);
  EXPECT_EQ(followed.notices[1], "the coordinator answers again");
}

TEST(JobStream, CoordinatorThatLostNewestEvents_RepeatsNoStep) {
  FakeCoordinator coordinator(
      {{.events = {StepEvent(8, 1, 5), StepEvent(9, 2, 5)}, .status = kGoingDown},
       {.events = {}, .status = grpc::Status(grpc::StatusCode::OUT_OF_RANGE, "9 is newer than 1")},
       {.events = {StepEvent(1, 1, 5), StepEvent(2, 2, 5), StepEvent(3, 3, 5), StateEvent(4, v1::JOB_STATE_SUCCEEDED)},
        .status = grpc::Status::OK}});

  Followed followed = Follow(coordinator);

  EXPECT_EQ(followed.delivered, std::vector<std::string>({"s1", "s2", "s3", "SUCCEEDED"}));
}

TEST(JobStream, StepsRepeatedAfterARestart_AreDeliveredOnce) {
  FakeCoordinator coordinator(
      {{.events = {StateEvent(1, v1::JOB_STATE_RUNNING), StepEvent(2, 1, 5), EvalEvent(3, 1, 5), StepEvent(4, 2, 5)},
        .status = kGoingDown},
       {.events = {StepEvent(1001, 2, 5), EvalEvent(1002, 1, 5), StepEvent(1003, 3, 5), EvalEvent(1004, 3, 5),
                   StateEvent(1005, v1::JOB_STATE_SUCCEEDED)},
        .status = grpc::Status::OK}});

  Followed followed = Follow(coordinator);

  EXPECT_EQ(followed.delivered, std::vector<std::string>({"RUNNING", "s1", "e1", "s2", "s3", "e3", "SUCCEEDED"}));
  EXPECT_EQ(coordinator.after_sequences(), std::vector<uint64_t>({0, 4}));
  EXPECT_EQ(coordinator.after_steps(), std::vector<uint64_t>({0, 2}));
  EXPECT_EQ(coordinator.after_eval_steps(), std::vector<uint64_t>({0, 1}));
}

TEST(JobStream, StreamThatStartsOver_DeliversNoStateTwice) {
  FakeCoordinator coordinator(
      {{.events = {StateEvent(7, v1::JOB_STATE_RUNNING, "all are ready"), StepEvent(8, 1, 5)}, .status = kGoingDown},
       {.events = {}, .status = grpc::Status(grpc::StatusCode::OUT_OF_RANGE, "8 is newer than 1")},
       {.events = {StateEvent(1, v1::JOB_STATE_RUNNING, "all are ready"), StepEvent(2, 2, 5),
                   StateEvent(3, v1::JOB_STATE_SUCCEEDED)},
        .status = grpc::Status::OK}});

  EXPECT_EQ(Follow(coordinator).delivered, std::vector<std::string>({"RUNNING", "s1", "s2", "SUCCEEDED"}));
}

TEST(JobStream, StreamThatEndsBeforeTheJob_IsReopened) {
  FakeCoordinator coordinator({{.events = {StepEvent(1, 1, 5)}, .status = grpc::Status::OK},
                               {.events = {StateEvent(2, v1::JOB_STATE_CANCELLED)}, .status = grpc::Status::OK}});

  EXPECT_EQ(*Follow(coordinator).end, v1::JOB_STATE_CANCELLED);
}

TEST(JobStream, UnknownJob_IsReportedImmediately) {
  FakeCoordinator coordinator({{.events = {}, .status = grpc::Status(grpc::StatusCode::NOT_FOUND, "no job k3x7q2ab")}});

  EXPECT_EQ(Follow(coordinator).end.status().code(), absl::StatusCode::kNotFound);
}

TEST(JobStream, CoordinatorThatDoesNotAnswer_EndsTheStreamAtTheTimeLimit) {
  FakeCoordinator coordinator({{.events = {}, .status = kGoingDown}, {.events = {}, .status = kGoingDown}});
  RetryOptions options = kFast;
  options.give_up_after = absl::ZeroDuration();

  Followed followed = Follow(coordinator, options);

  EXPECT_EQ(followed.end.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(followed.end.status().message().find(coordinator.address()), absl::string_view::npos);
}

TEST(JobStream, CoordinatorThatServedAJobWithoutEvents_HasAnswered) {
  FakeCoordinator coordinator({{.events = {}, .status = kGoingDown},
                               {.events = {}, .status = kGoingDown, .served = absl::Milliseconds(60)},
                               {.events = {StateEvent(1, v1::JOB_STATE_SUCCEEDED)}, .status = grpc::Status::OK}});
  RetryOptions options = kFast;
  options.give_up_after = absl::Milliseconds(40);

  EXPECT_TRUE(Follow(coordinator, options).end.ok()) << "the time without an answer began anew";
}

TEST(JobStream, Stop_EndsAWaitingWatch) {
  FakeCoordinator coordinator({{.events = {StepEvent(1, 1, 5)}, .status = grpc::Status::OK, .hang = true}});
  auto connection = Connection::Open({.address = coordinator.address()}, absl::Seconds(10));
  ASSERT_TRUE(connection.ok());
  JobStream stream(**connection, "k3x7q2ab", kFast);

  auto end = stream.Follow([&](const v1::Event&) { stream.Stop(); }, [](absl::string_view) {});

  EXPECT_EQ(end.status().code(), absl::StatusCode::kCancelled);
}

TEST(EventFilter, StepSavedByALaterGeneration_IsNew) {
  EventFilter filter;
  v1::Event saved = CheckpointEvent(1, 10);
  saved.set_generation(1);
  v1::Event again = CheckpointEvent(2, 10);
  again.set_generation(2);

  EXPECT_TRUE(filter.IsNew(saved));
  saved.set_sequence(2);
  EXPECT_FALSE(filter.IsNew(saved));
  again.set_sequence(3);
  EXPECT_TRUE(filter.IsNew(again));
}

TEST(EventFilter, CheckpointThatAnswersARequest_IsNew_EvenIfItWasReportedBefore) {
  EventFilter filter;
  v1::Event saved = CheckpointEvent(1, 10);
  EXPECT_TRUE(filter.IsNew(saved));
  for (uint64_t request : {1u, 2u}) {
    saved.set_sequence(1 + request);
    saved.mutable_checkpoint()->set_requested(true);
    saved.mutable_checkpoint()->set_recorded_unix_ms(static_cast<int64_t>(request));
    EXPECT_TRUE(filter.IsNew(saved));
  }
  saved.set_sequence(4);
  EXPECT_FALSE(filter.IsNew(saved)) << "a coordinator has repeated the second answer";
}

TEST(EventFilter, PassesOnlyEventsThatAreNew) {
  EventFilter filter;
  EXPECT_TRUE(filter.IsNew(StepEvent(5, 1, 0)));
  EXPECT_FALSE(filter.IsNew(StepEvent(5, 2, 0)));
  EXPECT_FALSE(filter.IsNew(StepEvent(6, 1, 0)));
  EXPECT_TRUE(filter.IsNew(StateEvent(7, v1::JOB_STATE_RUNNING)));
  EXPECT_EQ(filter.after_sequence(), 7u);
}

TEST(JobCalls, Submit_IsRetriedWithTheSameId) {
  FakeCoordinator coordinator({});
  auto connection = Connection::Open({.address = coordinator.address()}, absl::Seconds(10));
  v1::SubmitRequest request;
  request.set_job_id("k3x7q2ab");

  auto response = SubmitJob(**connection, request);

  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->job_id(), "k3x7q2ab");
}

TEST(JobCalls, AHostThatAnEarlierTryHasForgotten_IsNoError) {
  FakeCoordinator coordinator({});
  auto connection = Connection::Open({.address = coordinator.address()}, absl::Seconds(10));
  v1::SetHostRequest request;
  request.set_name("w1");
  request.set_action(v1::SetHostRequest::ACTION_FORGET);

  const auto forgotten = SetHost(**connection, request);
  const auto unknown = SetHost(**connection, request);
  request.set_name("w2");
  request.set_action(v1::SetHostRequest::ACTION_CORDON);
  const auto cordoned = SetHost(**connection, request);

  ASSERT_TRUE(forgotten.ok()) << forgotten.status();
  EXPECT_EQ(forgotten->name(), "w1");
  EXPECT_TRUE(absl::IsNotFound(unknown.status())) << "the first try of this call was answered";
  EXPECT_TRUE(absl::IsNotFound(cordoned.status()));
}

TEST(JobCalls, RestartWithAnId_IsCarriedOutByAnOlderCoordinator_WithoutTheId) {
  FakeCoordinator coordinator({});
  auto connection = Connection::Open({.address = coordinator.address()}, absl::Seconds(10));
  v1::RestartRequest request;
  request.set_request_id("restart-1");

  EXPECT_TRUE(absl::IsInvalidArgument(RestartJob(**connection, request).status())) << "it has no job_id";
  request.set_job_id("k3x7q2ab");
  const auto job = RestartJob(**connection, request);

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->job_id(), "k3x7q2ab");
  EXPECT_EQ(coordinator.restarts(), 4);
}

TEST(JobCalls, ListReadsAllPages) {
  FakeCoordinator coordinator({});
  auto connection = Connection::Open({.address = coordinator.address()}, absl::Seconds(10));

  EXPECT_EQ(ListJobs(**connection, {}, 100)->size(), 5u);
}

TEST(JobCalls, UnsupportedMethod_IsReportedWithTheAddress) {
  FakeCoordinator coordinator({});
  auto connection = Connection::Open({.address = coordinator.address()}, absl::Seconds(10));

  absl::Status status = GetJob(**connection, "k3x7q2ab").status();

  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find(coordinator.address()), absl::string_view::npos);
}

TEST(Targets, MustHaveAPort_AndBeLoopbackUnlessPlaintextIsAllowed) {
  for (const char* good : {"127.0.0.1:7070", "localhost:1", "[::1]:7070", "127.3.2.1:80"}) {
    EXPECT_TRUE(CheckTarget({.address = good}).ok()) << good;
  }
  for (const char* bad : {"", "host", ":7070", "host:", "host:0", "host:65536", "host:x", "::1:7070"}) {
    EXPECT_EQ(CheckTarget({.address = bad}).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(CheckTarget({.address = "10.0.0.1:7070"}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CheckTarget({.address = "127.evil.example:7070"}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(CheckTarget({.address = "10.0.0.1:7070", .allow_plaintext = true}).ok());
}

TEST(Connections, WithoutACoordinator_NameTheAddressAndTheAttempt) {
  absl::Status status = Connection::Open({.address = "127.0.0.1:1"}, absl::Milliseconds(1)).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("no coordinator answers at 127.0.0.1:1; tried to connect for 1ms"),
            absl::string_view::npos)
      << status;
}

}  // namespace
}  // namespace trainyard::client
