// One Attach stream of a daemon, from its Hello to its end.
//
// At most one message of each kind waits to be written: a newer desired state or acknowledgement replaces an older one,
// and values are references to data that all hosts share, so a slow daemon costs little memory. Kinds are written in
// the order in which they started to wait. Thread-safe.
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
  grpc::Slice bytes;  // encoded fields of a StoreValueList
  uint32_t count = 0;
};

class AttachStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  AttachStream(const RpcContext& context, Registry<SessionId, AttachStream>& registry, std::string peer);

  // The registry holds `self` until gRPC is done with the stream.
  void Start(std::shared_ptr<AttachStream> self);

  void Send(v1::CoordinatorMessage message);
  // Queued after the waiting values of the same generation. Waiting values of an earlier generation of the job are
  // dropped.
  void SendValues(const JobId& job, uint64_t generation, const ValuePiece* pieces, size_t count);
  void End(const absl::Status& status);

  // When a message last arrived, if one did since the last call.
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

  // Returns whether to continue reading now; otherwise reading continues once the queue is drained, unless the stream
  // ends.
  bool Handle(v1::AgentMessage message);
  bool HandleHeartbeat(const v1::Heartbeat& beat);
  void Read();
  void Detach();
  void QueueRefusals(v1::CoordinatorMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Enqueue(Kind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EncodeValues() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLocked(grpc::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const RpcContext& context_;
  Registry<SessionId, AttachStream>& registry_;
  const SessionId id_;
  const std::string peer_;

  // Used by the single read in progress.
  grpc::ByteBuffer incoming_;
  bool received_hello_ = false;
  uint64_t applied_revision_ = 0;
  bool draining_ = false;
  std::optional<std::string> trouble_;  // nullopt: no heartbeat has arrived yet

  std::atomic<int64_t> last_message_unix_ns_{0};
  std::atomic<bool> detached_{false};
  std::atomic<absl::StatusCode> code_{absl::StatusCode::kOk};

  absl::Mutex mu_;
  std::optional<absl::Duration> clock_offset_ ABSL_GUARDED_BY(mu_);
  std::optional<uint64_t> disk_free_bytes_ ABSL_GUARDED_BY(mu_);
  std::vector<Kind> order_ ABSL_GUARDED_BY(mu_);                             // kinds that wait, each once
  std::array<v1::CoordinatorMessage, kKinds> waiting_ ABSL_GUARDED_BY(mu_);  // by kind
  std::deque<Values> values_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer outgoing_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<grpc::Status> ended_with_ ABSL_GUARDED_BY(mu_);  // set: nothing is read or written any more
};

}  // namespace trainyard
