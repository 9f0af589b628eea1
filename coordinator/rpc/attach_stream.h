// One life of a daemon's stream, from its Hello to its end.
//
// Writing keeps at most one message of each kind waiting: a newer desired state replaces one that was not yet written,
// and so does a newer acknowledgement, so a slow daemon costs no memory. Thread-safe.
#pragma once

#include <grpcpp/server_context.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/core/effect.h"
#include "coordinator/rpc/context.h"
#include "coordinator/rpc/registry.h"
#include "trainyard/v1/agent.grpc.pb.h"

namespace trainyard {

class AttachStream final : public grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage> {
 public:
  AttachStream(const RpcContext& context, Registry<SessionId, AttachStream>& registry, std::string peer);

  // `self` is kept by the registry until gRPC is done with the stream.
  void Start(std::shared_ptr<AttachStream> self);

  void Send(v1::CoordinatorMessage message);
  void End(const absl::Status& status);

  // When it was last heard of, if since the last call.
  std::optional<Tick::Heard> TakeHeard();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // Returns whether to go on reading now; otherwise reading goes on when the queue was drained, or the stream is
  // ending.
  bool Take(v1::AgentMessage message);
  bool TakeHeartbeat(const v1::Heartbeat& beat);
  void Read();
  void Detach();
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLocked(grpc::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const RpcContext& context_;
  Registry<SessionId, AttachStream>& registry_;
  const SessionId id_;
  const std::string peer_;

  // Used by the one read that is under way.
  v1::AgentMessage incoming_;
  bool said_hello_ = false;
  uint64_t applied_revision_ = 0;
  bool draining_ = false;

  std::atomic<int64_t> heard_unix_ns_{0};
  std::atomic<bool> detached_{false};
  std::atomic<absl::StatusCode> code_{absl::StatusCode::kOk};

  absl::Mutex mu_;
  std::optional<absl::Duration> clock_offset_ ABSL_GUARDED_BY(mu_);
  std::optional<uint64_t> disk_free_bytes_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::CoordinatorMessage> welcome_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::CoordinatorMessage> desired_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::CoordinatorMessage> ack_ ABSL_GUARDED_BY(mu_);
  v1::CoordinatorMessage outgoing_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<grpc::Status> ended_with_ ABSL_GUARDED_BY(mu_);  // set: nothing is read or written any more
};

}  // namespace trainyard
