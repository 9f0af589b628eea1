// One WatchValues: a daemon hears of all values of a generation. What has gathered since the write before goes out in
// one message, and the bytes are shared with every other watcher: a group of N ranks costs N writes of N values, encoded
// once. What waits is bounded by what a generation's store may hold.
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

// Values as they go over the wire: whole fields of a StoreValues, so that pieces laid side by side are a message too.
std::vector<grpc::Slice> EncodeValues(const std::vector<ValuePtr>& values);

class ValuesStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  ValuesStream(const RpcContext& context, Registry<WatchId, ValuesStream>& registry)
      : context_(context), registry_(registry), id_(registry.NewId()) {}

  void Start(std::shared_ptr<ValuesStream> self, const grpc::ByteBuffer& request);

  void Push(const std::vector<grpc::Slice>& encoded);
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
  JobId job_;  // set before the first event is posted

  absl::Mutex mu_;
  std::deque<grpc::Slice> waiting_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer outgoing_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
