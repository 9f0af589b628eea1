// One life of a daemon's stream, from its Hello to its end.
//
// Writing keeps at most one message of each kind waiting: a newer desired state replaces one that was not yet written,
// and so does a newer acknowledgement; values are references to what all hosts share. So a slow daemon costs no memory.
// Kinds go out in the order in which they came to wait. Thread-safe.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/core/effect.h"
#include "coordinator/rpc/context.h"
#include "coordinator/rpc/registry.h"
#include "trainyard/v1/agent.grpc.pb.h"

namespace trainyard {

// Some values of a generation's store, encoded once for all its hosts.
struct ValuePiece {
  grpc::Slice bytes;  // fields of a StoreValueList
  uint32_t count = 0;
};

class AttachStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  AttachStream(const RpcContext& context, Registry<SessionId, AttachStream>& registry, std::string peer);

  // `self` is kept by the registry until gRPC is done with the stream.
  void Start(std::shared_ptr<AttachStream> self);

  void Send(v1::CoordinatorMessage message);
  // Behind the values of the generation that wait. What waits of an earlier generation of the job is dropped.
  void SendValues(const JobId& job, uint64_t generation, const ValuePiece* pieces, size_t count);
  void End(const absl::Status& status);

  // When it was last heard of, if since the last call.
  std::optional<Tick::Contact> TakeContacts();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class Kind { kWelcome, kDesired, kAck, kRefused, kValues };
  static constexpr size_t kKinds = 5;
  struct Values {
    JobId job;
    uint64_t generation = 0;
    std::deque<ValuePiece> pieces;
  };

  // Returns whether to go on reading now; otherwise reading goes on when the queue was drained, or the stream is
  // ending.
  bool Take(v1::AgentMessage message);
  bool TakeHeartbeat(const v1::Heartbeat& beat);
  void Read();
  void Detach();
  void Refuse(v1::CoordinatorMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Wait(Kind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EncodeValues() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLocked(grpc::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const RpcContext& context_;
  Registry<SessionId, AttachStream>& registry_;
  const SessionId id_;
  const std::string peer_;

  // Used by the one read that is under way.
  grpc::ByteBuffer incoming_;
  bool said_hello_ = false;
  uint64_t applied_revision_ = 0;
  bool draining_ = false;
  std::optional<std::string> trouble_;  // none: no heartbeat has come yet

  std::atomic<int64_t> heard_unix_ns_{0};
  std::atomic<bool> detached_{false};
  std::atomic<absl::StatusCode> code_{absl::StatusCode::kOk};

  absl::Mutex mu_;
  std::optional<absl::Duration> clock_offset_ ABSL_GUARDED_BY(mu_);
  std::optional<uint64_t> disk_free_bytes_ ABSL_GUARDED_BY(mu_);
  std::vector<Kind> order_ ABSL_GUARDED_BY(mu_);                             // of what waits, each once
  std::array<v1::CoordinatorMessage, kKinds> waiting_ ABSL_GUARDED_BY(mu_);  // by kind
  std::deque<Values> values_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer outgoing_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<grpc::Status> ended_with_ ABSL_GUARDED_BY(mu_);  // set: nothing is read or written any more
};

}  // namespace trainyard
