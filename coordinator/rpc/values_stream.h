// One WatchValues: a daemon hears of all values of a generation, in pieces that all watchers share (value_fan_out.h).
// What has gathered since the write before goes out in one message. What waits is bounded by what a generation's store
// may hold.
//
// Thread-safe. The registry keeps it until gRPC is done with it.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/core/effect.h"
#include "coordinator/rpc/context.h"
#include "coordinator/rpc/registry.h"
#include "trainyard/v1/agent.grpc.pb.h"

namespace trainyard {

class ValuesStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  ValuesStream(const RpcContext& context, Registry<WatchId, ValuesStream>& registry)
      : context_(context), registry_(registry), id_(registry.NewId()) {}

  void Start(std::shared_ptr<ValuesStream> self, const grpc::ByteBuffer& request);

  // Writes those of the log's pieces that it has not had yet. On the loop's thread.
  void Advance(const std::vector<grpc::Slice>& pieces);
  // OK: after what waits. Otherwise at once: who waits in a store that is over must not wait for what is still queued.
  void End(const absl::Status& status);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const RpcContext& context_;
  Registry<WatchId, ValuesStream>& registry_;
  const WatchId id_;
  JobId job_;              // set before the first event is posted
  size_t had_pieces_ = 0;  // the loop's thread's own

  absl::Mutex mu_;
  std::deque<grpc::Slice> waiting_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer outgoing_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
