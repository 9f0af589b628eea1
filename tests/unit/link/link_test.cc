// The link against a daemon in the same process, over a real Unix socket.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/hash.h"
#include "tests/unit/checkpoint/testing.h"
#include "tests/unit/trainer/small_spec.h"
#include "trainyard/v1/trainer.grpc.pb.h"
#include "worker/link/grpc_link.h"
#include "worker/link/link_messages.h"
#include "worker/link/spec_config.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(20);

// A refusal if there is a reason, else a grant.
v1::CheckpointGrant Grant(uint64_t step, uint64_t generation, const std::string& hash, const std::string& reason = "") {
  v1::CheckpointGrant grant;
  grant.set_step(step);
  grant.set_generation(generation);
  grant.set_manifest_hash(hash);
  grant.set_refused(!reason.empty());
  grant.set_reason(reason);
  return grant;
}

using Stream = grpc::ServerReaderWriter<v1::LinkMessage, v1::TrainerMessage>;

// Answers a registration with a spec, acknowledges only when a test requests it, and records the messages that it
// reads.
class FakeDaemon final : public v1::TrainerLink::Service {
 public:
  explicit FakeDaemon(const std::string& socket) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeDaemon() override {
    {
      absl::MutexLock lock(&mu_);
      if (context_ != nullptr) context_->TryCancel();
    }
    server_->Shutdown(std::chrono::system_clock::now());
  }

  grpc::Status Connect(grpc::ServerContext* context, Stream* stream) override {
    v1::TrainerMessage message;
    if (!stream->Read(&message)) return grpc::Status::OK;
    {
      absl::MutexLock lock(&mu_);
      registrations_.push_back(message.register_());
      if (!refusal_.ok()) return refusal_;
    }
    v1::LinkMessage start;
    v1::DesiredTrainer& trainer = *start.mutable_start()->mutable_trainer();
    *trainer.mutable_key() = message.register_().key();
    trainer.set_world_size(2);
    trainer.set_threads(1);
    trainer.set_spec(SmallSpec().SerializeAsString());
    trainer.mutable_restart_from()->set_step(40);
    *trainer.add_grants() = Grant(40, 1, "h40");
    *trainer.add_grants() = Grant(60, 2, "h60", "another hash of this step was granted");
    start.mutable_start()->set_host("w1");
    stream->Write(start);
    {
      // Only now may the test write, because a stream takes one message at a time.
      absl::MutexLock lock(&mu_);
      stream_ = stream;
      context_ = context;
    }
    while (stream->Read(&message)) {
      absl::MutexLock lock(&mu_);
      if (message.has_fact()) facts_.push_back(message.fact());
      if (message.has_report()) {
        for (const auto& step : message.report().steps()) steps_.push_back(step.step());
        phase_ = message.report().phase();
        reports_.push_back(message.report());
      }
    }
    absl::MutexLock lock(&mu_);
    stream_ = nullptr;
    context_ = nullptr;
    ++ended_;
    return grpc::Status::OK;
  }

  grpc::Status PutValue(grpc::ServerContext*, const v1::TrainerPutRequest* request, v1::TrainerPutResponse*) override {
    absl::MutexLock lock(&mu_);
    if (unavailable_ > 0) {
      --unavailable_;
      return {grpc::StatusCode::UNAVAILABLE, "the coordinator is away"};
    }
    values_[request->name()] = request->value();
    return grpc::Status::OK;
  }

  grpc::Status GetValue(grpc::ServerContext* context, const v1::TrainerGetRequest* request,
                        v1::TrainerGetResponse* response) override {
    absl::MutexLock lock(&mu_);
    auto can_answer = [&] { return values_.contains(request->name()) || context->IsCancelled(); };
    absl::Time until = absl::Now() + absl::Milliseconds(request->wait_ms());
    while (!can_answer() && absl::Now() < until)
      mu_.AwaitWithTimeout(absl::Condition(&can_answer), absl::Milliseconds(10));
    if (!values_.contains(request->name())) return {grpc::StatusCode::DEADLINE_EXCEEDED, "no rank has put it in time"};
    response->set_value(values_[request->name()]);
    return grpc::Status::OK;
  }

  void Send(const v1::LinkMessage& message) {
    absl::MutexLock lock(&mu_);
    auto is_connected = [this] { return stream_ != nullptr; };
    ASSERT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&is_connected), kLimit));
    stream_->Write(message);
  }

  // Waits until `condition`, evaluated under the lock, holds.
  template <typename F>
  bool Await(F condition) {
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&condition), kLimit);
  }

  absl::Mutex mu_;
  std::vector<v1::RegisterTrainer> registrations_;
  std::vector<v1::Fact> facts_;
  std::vector<uint64_t> steps_;
  std::string phase_;
  std::vector<v1::RankReport> reports_;
  std::map<std::string, std::string> values_;
  int unavailable_ = 0;  // puts to refuse before one is accepted
  int ended_ = 0;        // streams that have ended
  grpc::Status refusal_;

 private:
  Stream* stream_ = nullptr;
  grpc::ServerContext* context_ = nullptr;
  std::unique_ptr<grpc::Server> server_;
};

class LinkTest : public ::testing::Test {
 protected:
  std::unique_ptr<Link> Connect() {
    return NewGrpcLink({.socket = socket_, .job_id = "abcdefgh", .generation = 3, .rank = 1, .token = "secret"});
  }
  std::unique_ptr<FakeDaemon> NewDaemon() { return std::make_unique<FakeDaemon>(socket_); }

  TemporaryFolder folder_;
  // gRPC reads the address of a socket as a URI, in which '#' has a meaning.
  const std::string socket_ = folder_ / "daemon#1.sock";
};

TEST(OrderFromMessage, UsesTheDeviceOfTheGenerationIfTheSpecHasNone) {
  for (v1::Device device : {v1::DEVICE_CPU, v1::DEVICE_CUDA, v1::DEVICE_UNSPECIFIED}) {
    v1::StartTrainer start;
    start.mutable_trainer()->set_world_size(1);
    start.mutable_trainer()->set_spec(SmallSpec().SerializeAsString());
    start.mutable_trainer()->set_device(device);

    absl::StatusOr<StartOrder> order = OrderFromMessage(start);

    ASSERT_TRUE(order.ok()) << order.status();
    EXPECT_EQ(order->config.device == TrainConfig::Device::kCuda, device == v1::DEVICE_CUDA);
  }
}

TEST_F(LinkTest, Start_ReturnsTheOrderWithAComputedDigest) {
  auto daemon = NewDaemon();
  auto link = Connect();

  auto order = link->AwaitStart(kLimit);

  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(order->job_id, "abcdefgh");
  EXPECT_EQ(order->generation, 3u);
  EXPECT_EQ(order->rank, 1);
  EXPECT_EQ(order->restart_step, 40u);
  EXPECT_THAT(order->grants, ElementsAre(GrantedSave{.step = 40, .generation = 1, .manifest_hash = "h40"}));
  EXPECT_EQ(order->spec_digest, HashHex(SmallSpec().SerializeAsString()));
  EXPECT_EQ(order->config.model.width, 64);
  EXPECT_EQ(daemon->registrations_.at(0).token(), "secret");
  EXPECT_FALSE(daemon->registrations_.at(0).reconnect());
}

TEST_F(LinkTest, Reports_ReachTheDaemonBeforeAFactThatWasReportedLater) {
  auto daemon = NewDaemon();
  auto link = Connect();
  ASSERT_TRUE(link->AwaitStart(kLimit).ok());

  for (uint64_t step = 1; step <= 600; ++step) link->ReportStep({.step = step});
  link->ReportFact(SavedFact{.step = 600});

  ASSERT_TRUE(daemon->Await([&] { return daemon->facts_.size() == 1; }));
  absl::MutexLock lock(&daemon->mu_);
  ASSERT_EQ(daemon->steps_.size(), 600u);
  for (uint64_t i = 0; i < 600; ++i) EXPECT_EQ(daemon->steps_[i], i + 1);
  EXPECT_EQ(daemon->facts_[0].saved().step(), 600u);
  EXPECT_EQ(daemon->facts_[0].key().rank(), 1u);
}

TEST_F(LinkTest, NewDaemon_ReceivesUnacknowledgedFactsReportsAndValuesAgain) {
  auto daemon = NewDaemon();
  auto link = Connect();
  ASSERT_TRUE(link->AwaitStart(kLimit).ok());
  ASSERT_TRUE(link->Put("address/1", "here").ok());
  link->ReportFact(RegisteredFact{.spec_digest = "d"});
  uint64_t second = link->ReportFact(ReadyFact{.first_step = 1});
  link->ReportStep({.step = 1});
  ASSERT_TRUE(daemon->Await([&] { return daemon->facts_.size() == 2 && daemon->steps_.size() == 1; }));
  v1::LinkMessage ack;
  ack.mutable_ack()->set_sequence(1);
  daemon->Send(ack);
  ASSERT_TRUE(link->AwaitAcknowledged(1, kLimit));

  daemon.reset();
  link->ReportStep({.step = 2});
  daemon = NewDaemon();

  ASSERT_TRUE(daemon->Await([&] { return daemon->facts_.size() == 1 && daemon->steps_.size() == 2; }));
  EXPECT_EQ(daemon->facts_[0].sequence(), second);
  EXPECT_THAT(daemon->steps_, ElementsAre(1, 2));
  EXPECT_TRUE(daemon->registrations_[0].reconnect());
  EXPECT_EQ(daemon->values_["address/1"], "here");
}

TEST_F(LinkTest, GoAndStop_ReachTheLoop) {
  auto daemon = NewDaemon();
  auto link = Connect();
  ASSERT_TRUE(link->AwaitStart(kLimit).ok());
  EXPECT_EQ(link->AwaitGo([] { return true; }).code(), absl::StatusCode::kCancelled);

  v1::LinkMessage go, stop;
  go.mutable_go();
  stop.mutable_stop()->set_request(7);
  daemon->Send(stop);
  daemon->Send(go);

  EXPECT_TRUE(link->AwaitGo([] { return false; }).ok());
  EXPECT_EQ(link->stop_request().number, 7u);
}

TEST_F(LinkTest, SaveRequests_AreTheHighestNumberThatWasReceived) {
  auto daemon = NewDaemon();
  auto link = Connect();
  ASSERT_TRUE(link->AwaitStart(kLimit).ok());
  EXPECT_EQ(link->save_requests(), 0u);

  v1::LinkMessage save, older, go;
  save.mutable_save()->set_request(3);
  older.mutable_save()->set_request(2);
  go.mutable_go();
  daemon->Send(save);
  daemon->Send(older);
  daemon->Send(go);

  ASSERT_TRUE(link->AwaitGo([] { return false; }).ok());
  EXPECT_EQ(link->save_requests(), 3u);
}

TEST_F(LinkTest, Grant_EndsOnlyTheWaitForItsStepAndHash) {
  auto daemon = NewDaemon();
  auto link = Connect();
  auto order = link->AwaitStart(kLimit);
  ASSERT_TRUE(order.ok());
  EXPECT_EQ(link->AwaitGrant(40, "h40", absl::ZeroDuration()).code(), absl::StatusCode::kDeadlineExceeded);
  absl::Status answer = absl::UnknownError("no answer");
  std::thread waiter([&] { answer = link->AwaitGrant(80, "h80", kLimit); });

  v1::LinkMessage message;
  *message.mutable_grants()->add_grants() = Grant(40, order->generation - 1, "h40");
  *message.mutable_grants()->add_grants() = Grant(60, order->generation, "h60");
  daemon->Send(message);
  EXPECT_TRUE(link->AwaitGrant(60, "h60", kLimit).ok());
  *message.mutable_grants()->add_grants() = Grant(80, order->generation, "h80", "step 80 was granted before");
  daemon->Send(message);
  waiter.join();

  EXPECT_EQ(answer.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(answer.message()), HasSubstr("granted before"));
  EXPECT_EQ(link->AwaitGrant(80, "other", absl::ZeroDuration()).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(link->AwaitGrant(40, "h40", absl::ZeroDuration()).code(), absl::StatusCode::kDeadlineExceeded)
      << "a grant of an earlier generation must not count";
}

TEST_F(LinkTest, Grant_StaysValidAfterItsGeneration_ButAWaitEndsWithTheGeneration) {
  auto daemon = NewDaemon();
  auto link = Connect();
  auto order = link->AwaitStart(kLimit);
  ASSERT_TRUE(order.ok());
  absl::Status answer;
  std::thread waiter([&] { answer = link->AwaitGrant(80, "h80", kLimit); });

  v1::LinkMessage grants, abort;
  *grants.mutable_grants()->add_grants() = Grant(60, order->generation, "h60");
  abort.mutable_abort()->set_reason("rank 0 died");
  daemon->Send(grants);
  daemon->Send(abort);
  waiter.join();

  EXPECT_EQ(answer.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(link->AwaitGrant(60, "h60", absl::ZeroDuration()).ok());
}

TEST_F(LinkTest, Abort_EndsAWaitAndCallsTheCallbackOnce) {
  auto daemon = NewDaemon();
  auto link = Connect();
  ASSERT_TRUE(link->AwaitStart(kLimit).ok());
  absl::Notification called;
  std::string reason;
  link->OnAbort([&](std::string why) {
    reason = std::move(why);
    called.Notify();
  });
  absl::StatusOr<std::string> value;
  std::thread waiter([&] { value = link->Get("never", absl::Minutes(5)); });

  v1::LinkMessage abort;
  abort.mutable_abort()->set_reason("rank 0 died");
  daemon->Send(abort);
  daemon->Send(abort);

  waiter.join();
  EXPECT_EQ(value.status().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(called.WaitForNotificationWithTimeout(kLimit));
  EXPECT_EQ(reason, "rank 0 died");
  EXPECT_EQ(link->abort_status().message(), "rank 0 died");
}

TEST_F(LinkTest, Get_WaitsForThePut_WhichIsRetriedWhileTheCoordinatorIsAway) {
  auto daemon = NewDaemon();
  daemon->unavailable_ = 2;
  auto link = Connect();
  absl::StatusOr<std::string> value;
  std::thread waiter([&] { value = link->Get("address/0", kLimit); });

  EXPECT_TRUE(link->Put("address/0", std::string("\x00\xff", 2)).ok());
  waiter.join();

  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(*value, std::string("\x00\xff", 2));
  EXPECT_EQ(link->Get("other", absl::ZeroDuration()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(LinkTest, Refusal_IsFinal) {
  auto daemon = NewDaemon();
  daemon->refusal_ = grpc::Status(grpc::StatusCode::NOT_FOUND, "no such trainer");
  auto link = Connect();

  auto order = link->AwaitStart(kLimit);

  EXPECT_EQ(order.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(order.status().message()), HasSubstr("no such trainer"));
}

TEST_F(LinkTest, AwaitStart_WithoutADaemon_EndsWithinTheLimit) {
  auto link = Connect();

  absl::Status status = link->AwaitStart(absl::Milliseconds(100)).status();
  link->Close(absl::ZeroDuration());

  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("no order to start has come from the daemon at ", socket_, " within 100ms")));
}

TEST_F(LinkTest, Reports_ContainTheRanksPositionWhileItsLoopIsBlocked) {
  auto daemon = NewDaemon();
  auto link = Connect();
  ASSERT_TRUE(link->AwaitStart(kLimit).ok());
  link->ReportProgress(Phase::kFirstStep, 0);
  link->ReportWork({.compute_s = 1.5, .wait_s = 0.5, .steps = 3, .micro_batches = 6});
  link->PollCommunicators([] {
    return std::vector<CommunicatorProgress>{{"world", 9, 8, "all-reduce 9 (8 x fp64)", "all-reduce 9 (8 x fp64)"}};
  });

  // From here on the loop is inside of a collective and reports nothing.
  link->ReportProgress(Phase::kTrain, 1);

  auto has_first_step = [](const v1::RankReport& report) {
    return report.phase_times_size() == 1 && report.phase_times(0).phase() == "first_step";
  };
  EXPECT_TRUE(
      daemon->Await([&] { return std::any_of(daemon->reports_.begin(), daemon->reports_.end(), has_first_step); }));
  EXPECT_TRUE(daemon->Await([&] { return !daemon->reports_.empty() && daemon->reports_.back().phase_s() > 0.4; }));
  absl::MutexLock lock(&daemon->mu_);
  const v1::RankReport& last = daemon->reports_.back();
  EXPECT_EQ(last.phase(), "train");
  ASSERT_EQ(last.communicators_size(), 1);
  EXPECT_EQ(last.communicators(0).started(), 9u);
  EXPECT_EQ(last.communicators(0).waits_in(), "all-reduce 9 (8 x fp64)");
  EXPECT_EQ(last.compute_total_s(), 1.5);
  EXPECT_EQ(last.micro_batches_made(), 6u);
  EXPECT_EQ(last.phase_times_size(), 0);
}

TEST_F(LinkTest, Close_LetsTheDaemonReadEverything) {
  auto daemon = NewDaemon();
  auto link = Connect();
  ASSERT_TRUE(link->AwaitStart(kLimit).ok());

  link->ReportStep({.step = 9});
  link->ReportFact(FinishedFact{.step = 9});
  link->ReportProgress(Phase::kEnded, 9);
  link->Close(kLimit);

  ASSERT_TRUE(daemon->Await([&] { return daemon->ended_ == 1; }));
  EXPECT_EQ(daemon->facts_.size(), 1u);
  EXPECT_THAT(daemon->steps_, ElementsAre(9));
  EXPECT_EQ(daemon->phase_, "ended");
}

}  // namespace
}  // namespace trainyard
