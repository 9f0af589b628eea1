// A communicator that forwards every call to another one; the base class of test communicators. Threads: the same as
// for the inner communicator.
#pragma once

#include <memory>

#include "worker/collectives/communicator.h"

namespace trainyard {

class ForwardingCommunicator : public Communicator {
 public:
  // Does not own `inner`.
  explicit ForwardingCommunicator(Communicator& inner) : inner_(inner) {}
  Communicator& inner() const { return inner_; }

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override { return inner_.AllReduceSum(tensor); }
  std::unique_ptr<Collective> Broadcast(const at::Tensor& tensor, int root) override {
    return inner_.Broadcast(tensor, root);
  }
  std::unique_ptr<Collective> AllGather(const at::Tensor& out, const at::Tensor& in) override {
    return inner_.AllGather(out, in);
  }
  std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) override {
    return inner_.ReduceScatterSum(out, in);
  }
  std::unique_ptr<Collective> Barrier() override { return inner_.Barrier(); }
  absl::Status MonitoredBarrier(absl::Duration limit) override { return inner_.MonitoredBarrier(limit); }
  void Abort(absl::string_view reason) override { inner_.Abort(reason); }
  at::Tensor NewBuffer(int64_t numel, at::ScalarType type) override { return inner_.NewBuffer(numel, type); }
  void AdvanceOperations() override { inner_.AdvanceOperations(); }
  CollectiveProgress progress() const override { return inner_.progress(); }

 private:
  Communicator& inner_;
};

}  // namespace trainyard
