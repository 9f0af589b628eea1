// A coordinator in the test's own process: welcomes a daemon, sends it the desired states of the test, acknowledges its
// facts, stores its values, and records everything it receives.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/limits.h"
#include "trainyard/v1/agent.grpc.pb.h"

namespace trainyard {

class FakeCoordinator final : public v1::AgentService::Service {
 public:
  // Port 0: listens on a free port.
  explicit FakeCoordinator(int port = 0) { Listen(port); }
  ~FakeCoordinator() override { Stop(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int port() const { return port_; }

  void Stop() {
    if (server_ == nullptr) return;
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_ = nullptr;
  }

  // Sets the desired state and increments its revision.
  void Desire(const std::vector<v1::DesiredTrainer>& trainers, const std::vector<v1::LogRequest>& logs = {}) {
    absl::MutexLock lock(&mu_);
    desired_.set_revision(desired_.revision() + 1);
    desired_.clear_trainers();
    desired_.clear_logs();
    for (const v1::DesiredTrainer& trainer : trainers) *desired_.add_trainers() = trainer;
    for (const v1::LogRequest& request : logs) *desired_.add_logs() = request;
  }
  // While `hold` is true, puts are not answered, as if the answers were still under way.
  void HoldValues(bool hold) {
    absl::MutexLock lock(&mu_);
    hold_values_ = hold;
  }
  // While `acknowledge` is false, facts are received but neither recorded in `facts` nor acknowledged.
  void Acknowledge(bool acknowledge) {
    absl::MutexLock lock(&mu_);
    acknowledge_ = acknowledge;
  }

  struct Seen {
    std::vector<v1::Hello> hellos;
    std::vector<v1::Fact> facts;  // each sequence number once
    std::vector<uint64_t> steps;
    std::vector<std::string> lines;  // of logs: "<generation>/<rank>:<text>", with ! instead of : for standard error
    std::set<std::string> logs_ended;
    int exits_received = 0;  // acknowledged or not
    uint64_t heartbeats = 0;
    v1::Heartbeat last_heartbeat;
    int puts = 0;
    uint64_t applied_revision = 0;
    std::map<std::string, std::string> values;
  };
  // Waits until `condition` holds; returns false if it does not within `patience`.
  bool Await(const std::function<bool(const Seen&)>& condition, absl::Duration patience = absl::Seconds(30)) {
    absl::MutexLock lock(&mu_);
    auto holds = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return condition(seen_); };
    return mu_.AwaitWithTimeout(absl::Condition(&holds), patience);
  }
  Seen seen() {
    absl::MutexLock lock(&mu_);
    return seen_;
  }

  grpc::Status Attach(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::AgentMessage>* stream) override {
    v1::AgentMessage message;
    if (!stream->Read(&message) || !message.has_hello()) return grpc::Status::CANCELLED;
    v1::CoordinatorMessage welcome;
    welcome.mutable_welcome()->set_cluster_id("fake");
    welcome.mutable_welcome()->set_protocol(limits::kProtocol);
    welcome.mutable_welcome()->set_heartbeat_ms(100);
    {
      absl::MutexLock lock(&mu_);
      if (!seen_.hellos.empty() && seen_.hellos.back().outbox_id() != message.hello().outbox_id()) acked_ = 0;
      seen_.hellos.push_back(message.hello());
      welcome.mutable_welcome()->set_acked_fact(acked_);
    }
    stream->Write(welcome);
    absl::Mutex write_mu;
    std::thread pusher([&] { PushDesired(context, stream, &write_mu); });
    while (stream->Read(&message)) {
      v1::CoordinatorMessage answer;
      if (!Receive(message, &answer)) continue;
      absl::MutexLock lock(&write_mu);
      stream->Write(answer);
    }
    context->TryCancel();
    pusher.join();
    return grpc::Status::OK;
  }

  grpc::Status PushLogs(grpc::ServerContext*, grpc::ServerReader<v1::LogChunk>* reader,
                        v1::PushLogsResponse*) override {
    v1::LogChunk chunk;
    std::string id;
    while (reader->Read(&chunk)) {
      if (id.empty()) id = chunk.request_id();
      absl::MutexLock lock(&mu_);
      for (const v1::LogLine& line : chunk.lines()) {
        seen_.lines.push_back(
            absl::StrCat(line.generation(), "/", line.rank(), line.is_stderr() ? "!" : ":", line.text()));
      }
    }
    absl::MutexLock lock(&mu_);
    seen_.logs_ended.insert(id);
    return grpc::Status::OK;
  }

 private:
  void Listen(int port) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(), &port_);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  // Returns whether `answer` must be sent.
  bool Receive(const v1::AgentMessage& message, v1::CoordinatorMessage* answer) {
    absl::MutexLock lock(&mu_);
    if (message.has_heartbeat()) {
      ++seen_.heartbeats;
      seen_.last_heartbeat = message.heartbeat();
      seen_.applied_revision = message.heartbeat().applied_revision();
    }
    if (message.has_put()) ReceivePut(message.put());
    for (const v1::RankReport& report : message.reports().reports()) {
      for (const v1::StepReport& step : report.steps()) {
        if (seen_.steps.empty() || step.step() > seen_.steps.back()) seen_.steps.push_back(step.step());
      }
    }
    for (const v1::Fact& fact : message.facts().facts()) seen_.exits_received += fact.has_exited() ? 1 : 0;
    if (!message.has_facts() || !acknowledge_) return false;
    for (const v1::Fact& fact : message.facts().facts()) {
      if (fact.sequence() <= acked_) continue;
      acked_ = fact.sequence();
      seen_.facts.push_back(fact);
    }
    answer->mutable_ack()->set_sequence(acked_);
    return true;
  }

  void ReceivePut(const v1::PutValues& put) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++seen_.puts;
    v1::StoreValues& reported = values_.emplace_back();
    reported.set_job_id(put.job_id());
    reported.set_generation(put.generation());
    v1::StoreValueList list;
    for (const v1::StoreValue& value : put.values()) {
      auto [at, is_new] = seen_.values.try_emplace(value.name(), value.value());
      if (is_new) *list.add_values() = value;
      if (at->second == value.value()) continue;
      auto* refused = reported.add_refused();
      refused->set_name(value.name());
      refused->set_code(static_cast<uint32_t>(grpc::StatusCode::ALREADY_EXISTS));
    }
    reported.set_values(list.SerializeAsString());
    reported.set_count(static_cast<uint32_t>(list.values_size()));
  }

  void PushDesired(grpc::ServerContext* context,
                   grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::AgentMessage>* stream, absl::Mutex* write_mu) {
    uint64_t sent = 0;
    size_t reported = 0;
    while (!context->IsCancelled()) {
      v1::CoordinatorMessage message;
      {
        absl::MutexLock lock(&mu_);
        if (stopping_) return;
        if (desired_.revision() != sent) {
          *message.mutable_desired() = desired_;
          sent = desired_.revision();
        } else if (!hold_values_ && reported < values_.size()) {
          *message.mutable_values() = values_[reported++];
        }
      }
      if (message.has_desired() || message.has_values()) {
        absl::MutexLock lock(write_mu);
        stream->Write(message);
        continue;
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool acknowledge_ ABSL_GUARDED_BY(mu_) = true;
  bool hold_values_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t acked_ ABSL_GUARDED_BY(mu_) = 0;
  v1::DesiredState desired_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::StoreValues> values_ ABSL_GUARDED_BY(mu_);  // each sent once to every stream
  Seen seen_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
