// A complete coordinator in a test's process, on a free port, and a simulated daemon with a real stream.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/limits.h"
#include "coordinator/coordinator.h"
#include "tests/unit/coordinator/fake_host.h"
#include "tests/unit/temporary_folder.h"
#include "trainyard/v1/agent.grpc.pb.h"
#include "trainyard/v1/service.grpc.pb.h"

namespace trainyard {

inline constexpr uint64_t kIncarnation = 4'711;

// A daemon with a real stream. Reads block, so a test states exactly what it waits for.
class StreamHost {
 public:
  explicit StreamHost(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::AgentService::NewStub(channel)), stream_(stub_->Attach(&context_)) {
    v1::AgentMessage message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_protocol(limits::kProtocol);
    hello.set_host("w1");
    hello.set_incarnation(kIncarnation);
    hello.set_slots(2);
    hello.mutable_inventory()->set_cores(2);
    stream_->Write(message);
  }
  ~StreamHost() { context_.TryCancel(); }

  // Reads until a desired state satisfies `done`. Returns false if the stream ended.
  template <typename Done>
  bool AwaitDesired(Done done) {
    v1::CoordinatorMessage message;
    while (stream_->Read(&message)) {
      if (message.has_desired() && done(message.desired())) {
        desired = message.desired();
        return true;
      }
    }
    return false;
  }
  // Sends a fact of this rank of generation 1 of kJob.
  void ReportFact(uint32_t rank, v1::Fact fact) {
    v1::AgentMessage message;
    fact.set_sequence(++sequence_);
    *fact.mutable_key() = Key(kJob, 1, rank);
    *message.mutable_facts()->add_facts() = std::move(fact);
    stream_->Write(message);
  }
  void ReportFromAllRanks(const v1::Fact& fact) {
    for (uint32_t rank = 0; rank < 2; ++rank) ReportFact(rank, fact);
  }
  // Sends one report of rank 0 with the steps from 1 to `steps`.
  void Report(uint64_t steps) {
    v1::AgentMessage message;
    v1::RankReport& report = *message.mutable_reports()->add_reports();
    *report.mutable_key() = Key(kJob, 1, 0);
    for (uint64_t step = 1; step <= steps; ++step) report.add_steps()->set_step(step);
    stream_->Write(message);
  }
  // Sends rendezvous values of generation 1 of kJob.
  void Put(const std::map<std::string, std::string>& values) {
    v1::AgentMessage message;
    message.mutable_put()->set_job_id(kJob);
    message.mutable_put()->set_generation(1);
    for (const auto& [name, value] : values) {
      v1::StoreValue& added = *message.mutable_put()->add_values();
      added.set_name(name);
      added.set_value(value);
    }
    stream_->Write(message);
  }
  // Reads until `count` rendezvous values have arrived, and returns them; fewer if the stream ended.
  std::map<std::string, std::string> AwaitValues(size_t count) {
    std::map<std::string, std::string> values;
    v1::CoordinatorMessage message;
    while (values.size() < count && stream_->Read(&message)) {
      v1::StoreValueList list;
      if (message.values().refused_size() > 0) refused = message.values().refused(0);
      EXPECT_TRUE(list.ParseFromString(message.values().values()));
      EXPECT_EQ(message.values().count(), static_cast<uint32_t>(list.values_size()));
      for (const v1::StoreValue& value : list.values()) EXPECT_TRUE(values.emplace(value.name(), value.value()).second);
    }
    return values;
  }
  // Reads until the coordinator has refused a value, which is then in `refused`. Returns false if the stream ended.
  bool AwaitRefusal() {
    v1::CoordinatorMessage message;
    while (refused.name().empty() && stream_->Read(&message)) {
      if (message.values().refused_size() > 0) refused = message.values().refused(0);
    }
    return !refused.name().empty();
  }
  // Reads until the stream ends, and returns its status.
  grpc::Status Finish() {
    v1::CoordinatorMessage message;
    while (stream_->Read(&message)) {
    }
    return stream_->Finish();
  }

  v1::DesiredState desired;  // the last one for which AwaitDesired returned true
  v1::RefusedValue refused;  // the last value that the coordinator refused

 private:
  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::CoordinatorMessage>> stream_;
  uint64_t sequence_ = 0;
};

class RpcTest : public testing::Test {
 protected:
  RpcTest() { Start(); }

  void Start() {
    CoordinatorOptions options;
    options.listen = "127.0.0.1:0";
    options.state = state_;
    options.lease_ms = 3'000;
    options.finished_jobs = 100;
    options.allow_local_users = true;
    auto started = Coordinator::Start(options, Clock::GetRealClock(), [](const absl::Status&) { std::abort(); });
    ASSERT_TRUE(started.ok()) << started.status();
    coordinator_ = *std::move(started);
    channel_ = grpc::CreateChannel(coordinator_->address(), grpc::InsecureChannelCredentials());
    jobs_ = v1::JobService::NewStub(channel_);
  }

  grpc::Status Submit() {
    v1::SubmitRequest request;
    *request.mutable_spec() = MakeSpec(2);
    request.set_job_id(kJob);
    request.set_default_run_root("/runs");
    grpc::ClientContext context;
    v1::SubmitResponse response;
    return jobs_->Submit(&context, request, &response);
  }
  v1::Job Get() {
    v1::GetRequest request;
    request.set_job_id(kJob);
    grpc::ClientContext context;
    v1::Job job;
    jobs_->Get(&context, request, &job);
    return job;
  }
  // Reports that both ranks of kJob have started and are ready, and waits until `host` receives `go` for them.
  void BringToRunning(StreamHost& host) {
    ASSERT_TRUE(host.AwaitDesired([](const v1::DesiredState& state) { return state.trainers_size() == 2; }));
    v1::Fact fact;
    fact.mutable_started()->set_pid(1);
    host.ReportFromAllRanks(fact);
    fact.mutable_registered()->set_spec_digest(host.desired.trainers(0).spec_digest());
    host.ReportFromAllRanks(fact);
    fact.mutable_ready()->set_first_step(1);
    host.ReportFromAllRanks(fact);
    ASSERT_TRUE(host.AwaitDesired(
        [](const v1::DesiredState& state) { return state.trainers_size() == 2 && state.trainers(0).go(); }));
  }

  const TemporaryFolder folder_;
  const std::string state_ = folder_.path();
  std::unique_ptr<Coordinator> coordinator_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
};

}  // namespace trainyard
