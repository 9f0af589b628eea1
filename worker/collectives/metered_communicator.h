// A communicator that counts the operations of another one and times the waits. Tests use the counts to check the types
// and the numbers of the reductions of a step.
//
// Threads: as for Communicator; any thread may call counts() and waited_s().
#pragma once

#include <c10/core/ScalarType.h>

#include <chrono>
#include <functional>
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
using CollectiveCounts = std::map<std::pair<CollectiveKind, at::ScalarType>, CollectiveCount>;  // barriers: kByte

// One operation, reported after it was waited for.
struct CollectiveEvent {
  using Clock = std::chrono::steady_clock;
  const char* group = "";  // valid as long as the communicator
  CollectiveKind kind = CollectiveKind::kBarrier;
  at::ScalarType type = at::kByte;
  int64_t elements = 0;
  Clock::time_point started = {}, wait_began = {}, wait_ended = {};
  bool ok = false;
};

class MeteredCommunicator final : public Communicator {
 public:
  // `name`: the group's name, for example "shard". `observer` may be null; it is called on the loop's thread and must
  // not start operations.
  MeteredCommunicator(std::string name, std::unique_ptr<Communicator> inner,
                      std::function<void(const CollectiveEvent&)> observer = nullptr);
  ~MeteredCommunicator() override;

  const std::string& name() const { return name_; }
  void set_observer(std::function<void(const CollectiveEvent&)> observer) { observer_ = std::move(observer); }

  // Totals since construction, including warm-up but not MonitoredBarrier; subtract two readings for an interval.
  CollectiveCounts counts() const;
  // Total time spent in Wait.
  double waited_s() const;
  const Communicator& inner() const { return *inner_; }

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
  class Operation;
  // `whole` is undefined for a barrier.
  std::unique_ptr<Collective> Count(CollectiveKind kind, const at::Tensor& whole, std::unique_ptr<Collective> started);

  const std::string name_;
  const std::unique_ptr<Communicator> inner_;
  std::function<void(const CollectiveEvent&)> observer_;
  mutable absl::Mutex mu_;
  CollectiveCounts counts_ ABSL_GUARDED_BY(mu_);
  CollectiveEvent::Clock::duration waited_ ABSL_GUARDED_BY(mu_) = {};
};

}  // namespace trainyard
