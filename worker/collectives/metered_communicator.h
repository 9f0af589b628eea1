// A communicator that counts the operations of another one. Tests use the counts to check the types and the numbers of
// the reductions of a step.
//
// Threads: the same as for Communicator, except that any thread may call counts().
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/collectives/communicator.h"

namespace trainyard {

enum class CollectiveKind { kAllReduce, kBroadcast, kAllGather, kReduceScatter, kBarrier };
const char* CollectiveKindName(CollectiveKind kind);  // "all-reduce"

// Elements and bytes count the whole tensor: `out` of an all-gather, `in` of a reduce-scatter.
struct CollectiveCount {
  uint64_t operations = 0;
  uint64_t elements = 0;
  uint64_t bytes = 0;
};
// By kind of operation and type of tensor. A barrier, which has no tensor, counts as kByte.
using CollectiveCounts = std::map<std::pair<CollectiveKind, at::ScalarType>, CollectiveCount>;

class MeteredCommunicator final : public Communicator {
 public:
  // `name`: the group's name, for example "shard".
  MeteredCommunicator(std::string name, std::unique_ptr<Communicator> inner);
  ~MeteredCommunicator() override;

  const std::string& name() const { return name_; }

  // Totals since construction, including warm-up but not MonitoredBarrier; subtract two readings for an interval.
  CollectiveCounts counts() const;

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override;
  std::unique_ptr<Collective> Broadcast(const at::Tensor& tensor, int root) override;
  std::unique_ptr<Collective> AllGather(const at::Tensor& out, const at::Tensor& in) override;
  std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) override;
  std::unique_ptr<Collective> Barrier() override;
  absl::Status MonitoredBarrier(absl::Duration limit) override { return inner_->MonitoredBarrier(limit); }
  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  at::Tensor NewBuffer(int64_t numel, at::ScalarType type) override { return inner_->NewBuffer(numel, type); }
  void AdvanceOperations() override { inner_->AdvanceOperations(); }
  CollectiveProgress progress() const override { return inner_->progress(); }

 private:
  // Counts an operation on the tensor `whole`, which is undefined for a barrier.
  void Count(CollectiveKind kind, const at::Tensor& whole);

  const std::string name_;
  const std::unique_ptr<Communicator> inner_;
  mutable absl::Mutex mu_;
  CollectiveCounts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
