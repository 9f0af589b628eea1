// The link against a daemon in the same process, over a real Unix socket.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "common/hash.h"
#include "tests/unit/checkpoint/testing.h"
#include "trainyard/v1/trainer.grpc.pb.h"
#include "worker/trainer/grpc_link.h"
#include "worker/trainer/link_messages.h"
#include "worker/trainer/spec_config.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(20);

v1::JobSpec SmallSpec() {
  v1::JobSpec spec;
  spec.set_name("small");
  v1::Train& train = *spec.mutable_train();
  train.mutable_model()->set_layers(2);
  train.mutable_model()->set_heads(4);
  train.mutable_model()->set_width(64);
  train.mutable_model()->set_context(32);
  train.mutable_data()->add_text("/data");
  train.mutable_batch()->set_global(8);
  train.mutable_batch()->set_micro(2);
  train.set_steps(100);
  spec.mutable_checkpoint()->set_dir("/run");
  return spec;
}

using Stream = grpc::ServerReaderWriter<v1::LinkMessage, v1::TrainerMessage>;

// Answers a registration with a spec, acknowledges nothing by itself, and remembers what it reads.
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
    start.mutable_start()->set_host("w1");
    stream->Write(start);
    {
      // Only now may the test write: a stream takes one message at a time.
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
    auto there = [&] { return values_.contains(request->name()) || context->IsCancelled(); };
    absl::Time until = absl::Now() + absl::Milliseconds(request->wait_ms());
    while (!there() && absl::Now() < until) mu_.AwaitWithTimeout(absl::Condition(&there), absl::Milliseconds(10));
    if (!values_.contains(request->name())) return {grpc::StatusCode::DEADLINE_EXCEEDED, "it did not come"};
    response->set_value(values_[request->name()]);
    return grpc::Status::OK;
  }

  void Send(const v1::LinkMessage& message) {
    absl::MutexLock lock(&mu_);
    auto up = [this] { return stream_ != nullptr; };
    ASSERT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&up), kLimit));
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
  int unavailable_ = 0;
  int ended_ = 0;
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
  const std::string socket_ = folder_ / "daemon.sock";
};

TEST_F(LinkTest, Start_GivesTheOrderAndItsOwnDigest) {
  auto daemon = NewDaemon();
  auto link = Connect();

  auto order = link->AwaitStart(kLimit);

  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(order->job_id, "abcdefgh");
  EXPECT_EQ(order->generation, 3u);
  EXPECT_EQ(order->rank, 1);
  EXPECT_EQ(order->restart_step, 40u);
  EXPECT_EQ(order->spec_digest, HashHex(SmallSpec().SerializeAsString()));
  EXPECT_EQ(order->config.model.width, 64);
  EXPECT_EQ(daemon->registrations_.at(0).token(), "secret");
  EXPECT_FALSE(daemon->registrations_.at(0).reconnect());
}

TEST_F(LinkTest, Reports_ReachTheDaemonBeforeTheFactToldAfterThem) {
  auto daemon = NewDaemon();
  auto link = Connect();
  ASSERT_TRUE(link->AwaitStart(kLimit).ok());

  for (uint64_t step = 1; step <= 600; ++step) link->ReportStep({.step = step});
  link->Tell(SavedFact{.step = 600});

  ASSERT_TRUE(daemon->Await([&] { return daemon->facts_.size() == 1; }));
  absl::MutexLock lock(&daemon->mu_);
  ASSERT_EQ(daemon->steps_.size(), 600u);
  for (uint64_t i = 0; i < 600; ++i) EXPECT_EQ(daemon->steps_[i], i + 1);
  EXPECT_EQ(daemon->facts_[0].saved().step(), 600u);
  EXPECT_EQ(daemon->facts_[0].key().rank(), 1u);
}

TEST_F(LinkTest, NewDaemon_GetsUnacknowledgedFactsReportsAndValuesAgain) {
  auto daemon = NewDaemon();
  auto link = Connect();
  ASSERT_TRUE(link->AwaitStart(kLimit).ok());
  ASSERT_TRUE(link->Put("address/1", "here").ok());
  link->Tell(RegisteredFact{.spec_digest = "d"});
  uint64_t second = link->Tell(ReadyFact{.first_step = 1});
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

TEST_F(LinkTest, Abort_EndsAWaitAndCallsBackOnce) {
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
  std::thread waits([&] { value = link->Get("never", absl::Minutes(5)); });

  v1::LinkMessage abort;
  abort.mutable_abort()->set_reason("rank 0 died");
  daemon->Send(abort);
  daemon->Send(abort);

  waits.join();
  EXPECT_EQ(value.status().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(called.WaitForNotificationWithTimeout(kLimit));
  EXPECT_EQ(reason, "rank 0 died");
  EXPECT_EQ(link->abort_status().message(), "rank 0 died");
}

TEST_F(LinkTest, Values_WaitForEachOther_AndOutliveAnAbsentCoordinator) {
  auto daemon = NewDaemon();
  daemon->unavailable_ = 2;
  auto link = Connect();
  absl::StatusOr<std::string> value;
  std::thread waits([&] { value = link->Get("address/0", kLimit); });

  EXPECT_TRUE(link->Put("address/0", std::string("\x00\xff", 2)).ok());
  waits.join();

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

TEST_F(LinkTest, NoDaemon_EndsWithinTheLimit) {
  auto link = Connect();

  absl::Status status = link->AwaitStart(absl::Milliseconds(100)).status();
  link->Close(absl::ZeroDuration());

  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr(socket_));
}

TEST_F(LinkTest, Reports_TellWhereTheRankStands_WhileItsLoopSaysNothing) {
  auto daemon = NewDaemon();
  auto link = Connect();
  ASSERT_TRUE(link->AwaitStart(kLimit).ok());
  link->ReportProgress(Phase::kFirstStep, 0);
  link->ReportWork({.compute_s = 1.5, .wait_s = 0.5, .steps = 3, .micro_batches = 6});
  link->PollCommunicators([] {
    return std::vector<CommunicatorProgress>{{"world", 9, 8, "all-reduce 9 (8 x fp64)", "all-reduce 9 (8 x fp64)"}};
  });

  // The loop is inside a collective from here on.
  link->ReportProgress(Phase::kTrain, 1);

  auto learned = [](const v1::RankReport& report) {
    return report.phase_times_size() == 1 && report.phase_times(0).phase() == "first_step";
  };
  EXPECT_TRUE(daemon->Await([&] { return std::any_of(daemon->reports_.begin(), daemon->reports_.end(), learned); }));
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
  link->Tell(FinishedFact{.step = 9});
  link->ReportProgress(Phase::kEnded, 9);
  link->Close(kLimit);

  ASSERT_TRUE(daemon->Await([&] { return daemon->ended_ == 1; }));
  EXPECT_EQ(daemon->facts_.size(), 1u);
  EXPECT_THAT(daemon->steps_, ElementsAre(9));
  EXPECT_EQ(daemon->phase_, "ended");
}

TEST(SpecConfigTest, EveryKey_IsCarriedOver) {
  v1::JobSpec spec = SmallSpec();
  v1::Train& train = *spec.mutable_train();
  train.mutable_model()->set_dropout(0.25);
  train.mutable_precision()->set_master(v1::PRECISION_FP64);
  train.set_seed(7);
  train.mutable_optimizer()->set_lr(0.5);
  train.mutable_optimizer()->add_betas(0.8);
  train.mutable_optimizer()->add_betas(0.9);
  train.mutable_optimizer()->set_clip_norm(0);
  train.mutable_schedule()->set_kind(v1::SCHEDULE_KIND_LINEAR);
  train.mutable_schedule()->set_min_ratio(0);
  train.mutable_evaluate()->set_every_steps(10);
  spec.mutable_parallel()->set_overlap(false);
  spec.mutable_resources()->set_mkl_avx512(v1::SWITCH_OFF);
  spec.mutable_checkpoint()->set_keep(0);

  auto config = ConfigFromSpec(spec.SerializeAsString());

  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.dropout, 0.25);
  EXPECT_EQ(config->precision.master, "fp64");
  EXPECT_EQ(config->precision.param, "fp32");
  EXPECT_EQ(config->seed, 7u);
  EXPECT_EQ(config->optimizer.lr, 0.5);
  EXPECT_EQ(config->optimizer.beta1, 0.8);
  EXPECT_EQ(config->optimizer.clip_norm, 0);
  EXPECT_EQ(config->schedule.kind, TrainConfig::ScheduleKind::kLinear);
  EXPECT_EQ(config->schedule.min_ratio, 0);
  EXPECT_EQ(config->evaluate_every, 10u);
  EXPECT_EQ(config->evaluate_batches, 8);
  EXPECT_FALSE(config->parallel.overlap);
  EXPECT_EQ(config->mkl_avx512, TrainConfig::Switch::kOff);
  EXPECT_EQ(config->checkpoint_keep, 0u);
  EXPECT_EQ(config->data.text, std::vector<std::string>{"/data"});
}

TEST(SpecConfigTest, Probe_NeedsNothingOfTraining) {
  v1::JobSpec spec;
  spec.set_name("probe");
  spec.mutable_probe()->set_matmul_size(64);
  spec.mutable_probe()->set_matmul_repeats(3);
  spec.mutable_probe()->set_all_reduce_bytes(8192);
  spec.mutable_resources()->set_mkl_avx512(v1::SWITCH_ON);

  auto config = ConfigFromSpec(spec.SerializeAsString());

  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->probe.has_value());
  EXPECT_EQ(config->probe->matmul_size, 64);
  EXPECT_EQ(config->probe->matmul_repeats, 3);
  EXPECT_EQ(config->probe->all_reduce_bytes, 8192);
  EXPECT_EQ(config->mkl_avx512, TrainConfig::Switch::kOn);
  EXPECT_FALSE(ConfigFromSpec(SmallSpec().SerializeAsString())->probe.has_value());
}

TEST(LinkMessagesTest, WhatAProbeMeasuredIsCarriedOver) {
  v1::Fact fact =
      ToMessage(ProbeFact{.matmul_gflops = 50, .all_reduce_latency_s = 2e-5, .all_reduce_bytes_per_s = 3e9});

  EXPECT_EQ(fact.probe().matmul_gflops(), 50);
  EXPECT_EQ(fact.probe().all_reduce_latency_s(), 2e-5);
  EXPECT_EQ(fact.probe().all_reduce_bytes_per_s(), 3e9);
}

TEST(SpecConfigTest, UnresolvedSpec_IsRefusedByKey) {
  v1::JobSpec spec = SmallSpec();
  spec.mutable_train()->mutable_batch()->clear_micro();

  EXPECT_THAT(std::string(ConfigFromSpec(spec.SerializeAsString()).status().message()), HasSubstr("train.batch.micro"));
  EXPECT_THAT(std::string(ConfigFromSpec("\xff\xff\xff").status().message()), HasSubstr("no JobSpec"));
}

TEST(LinkMessagesTest, TextThatIsNotUtf8_IsMadeSo) {
  v1::Fact fact =
      ToMessage(RefusedFact{.message = "gr\xc3\xbc\xc3\x9f \xff\xc3 \xed\xa0\x80" + std::string(10000, 'x')});

  EXPECT_THAT(fact.refused().message(), testing::StartsWith("gr\xc3\xbc\xc3\x9f ?? ???xxx"));
  EXPECT_LE(fact.refused().message().size(), 4096u);
  EXPECT_TRUE(v1::Fact().ParseFromString(fact.SerializeAsString()));
}

}  // namespace
}  // namespace trainyard
