// The class GrpcLink: two threads, which read and write the stream (grpc_link_stream.cc), and the methods that the loop
// calls (grpc_link.cc). Private to these two files.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/steady_cond_var.h"
#include "trainyard/v1/trainer.grpc.pb.h"
#include "worker/link/grpc_link.h"
#include "worker/link/outbox.h"
#include "worker/link/phase_clock.h"
#include "worker/link/value_calls.h"

namespace trainyard::grpc_link {

class GrpcLink final : public Link {
 public:
  // The longest delay between two attempts to reach a daemon that is being replaced. Short, because the socket is on
  // this host, and as long as no daemon receives this rank's reports the rank cannot be distinguished from one that
  // hangs.
  static constexpr absl::Duration kReconnectMax = absl::Milliseconds(250);

  explicit GrpcLink(const GrpcLinkOptions& options);
  ~GrpcLink() override { Close(absl::ZeroDuration()); }

  absl::StatusOr<StartOrder> AwaitStart(absl::Duration limit) override;
  uint64_t ReportFact(const TrainerFact& fact) override;
  uint64_t acknowledged() const override;
  bool AwaitAcknowledged(uint64_t sequence, absl::Duration limit) override;
  void ReportStep(const StepRecord& record) override;
  void ReportEval(const EvalRecord& record) override;
  void ReportProgress(Phase phase, uint64_t last_step) override;
  void ReportWork(const WorkTotals& totals) override;
  void ReportMemory(const std::vector<MemoryUse>& memory) override;
  void PollCommunicators(std::function<std::vector<CommunicatorProgress>()> poll) override;
  absl::Status AwaitGo(const std::function<bool()>& interrupted) override;
  StopRequest stop_request() const override;
  absl::Status AwaitGrant(uint64_t step, absl::string_view manifest_hash, absl::Duration limit) override;
  uint64_t save_requests() const override;
  void OnAbort(std::function<void(std::string)> callback) override;
  absl::Status abort_status() const override;
  void Close(absl::Duration limit) override;
  absl::Status Put(absl::string_view name, absl::string_view value) override { return values_.Put(name, value); }
  absl::StatusOr<std::string> Get(absl::string_view name, absl::Duration timeout) override {
    return values_.Get(name, timeout);
  }

 private:
  using Stream = grpc::ClientReaderWriter<v1::TrainerMessage, v1::LinkMessage>;
  using ReadySave = std::pair<uint64_t, std::string>;  // step, manifest hash

  // Deadlines use the steady clock.
  static absl::Time Now() { return Clock::GetSteadyClock().TimeNow(); }

  // The reading thread.
  void ConnectForever();
  absl::Status RunStream(bool reconnect);
  void Handle(const v1::LinkMessage& message);
  void AbortWith(std::string reason);

  // The writing thread.
  void WriteForever();
  absl::Time NextWrite() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool NextMessage(absl::Time now, v1::TrainerMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FillProgress(v1::RankReport& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StoreGrants(const v1::GrantSaves& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsIdle() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !outbox_.has_facts() && !outbox_.has_reports(); }

  // Returns false if the link was closed or aborted during the pause.
  bool Pause(absl::Duration duration);

  const GrpcLinkOptions options_;
  const v1::TrainerKey key_;
  const std::unique_ptr<v1::TrainerLink::Stub> stub_;
  ValueCalls values_;

  mutable absl::Mutex mu_;
  Outbox outbox_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<absl::StatusOr<StartOrder>> order_ ABSL_GUARDED_BY(mu_);
  bool go_ ABSL_GUARDED_BY(mu_) = false;
  StopRequest stop_request_ ABSL_GUARDED_BY(mu_);
  std::map<ReadySave, absl::Status> grants_ ABSL_GUARDED_BY(mu_);  // of this generation: the newest few answers
  uint64_t save_requests_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  std::function<void(std::string)> on_abort_ ABSL_GUARDED_BY(mu_);
  PhaseClock phases_ ABSL_GUARDED_BY(mu_){std::chrono::steady_clock::now()};
  WorkTotals work_ ABSL_GUARDED_BY(mu_);
  std::vector<MemoryUse> memory_ ABSL_GUARDED_BY(mu_);
  std::function<std::vector<CommunicatorProgress>()> poll_ ABSL_GUARDED_BY(mu_);
  uint64_t last_step_ ABSL_GUARDED_BY(mu_) = 0;
  bool phase_changed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time last_report_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mu_);  // null: not connected
  grpc::ClientContext* stream_context_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;   // no reconnecting; the writer ends the stream when everything is sent
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // the reading thread has ended
  SteadyCondVar changed_;

  // Held by the thread that writes to the stream, and while the stream is being finished.
  absl::Mutex write_mu_ ABSL_ACQUIRED_BEFORE(mu_);

  std::thread reader_;
  std::thread writer_;
};

}  // namespace trainyard::grpc_link
