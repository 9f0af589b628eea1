// Communicators in which one rank is late for one operation of each step: the first in step 1, the second in step 2,
// and so on. Results must not depend on which rank waits for which.
#pragma once

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/parity/forwarding_communicator.h"
#include "worker/collectives/group.h"
#include "worker/parallel/mesh_communicators.h"

namespace trainyard {

class DelayedGroups {
 public:
  // `delay_ms` 0: returns `groups` unchanged. Does not own `groups`.
  DelayedGroups(MeshGroups& groups, int64_t delay_ms) : clock_{.delay = std::chrono::milliseconds(delay_ms)} {
    communicators_ = {.job = Late(groups.world),
                      .data = Late(groups.data),
                      .shard = Late(groups.shard),
                      .replicate = Late(groups.replicate)};
    clock_.rank = groups.world->rank();
    clock_.world = groups.world->world_size();
  }

  const MeshCommunicators& communicators() const { return communicators_; }
  void BeginStep(int64_t step) {
    clock_.due = step;
    clock_.started = 0;
  }
  void EndStep() { clock_.due = 0; }

 private:
  struct Clock {
    std::chrono::milliseconds delay{0};
    int rank = 0, world = 1;
    int64_t due = 0;      // the number of the delayed operation; 0: none
    int64_t started = 0;  // operations started in this step
    void Tick() {
      if (++started == due && due % world == rank) std::this_thread::sleep_for(delay);
    }
  };

  class LateCommunicator final : public ForwardingCommunicator {
   public:
    LateCommunicator(Communicator& inner, Clock& clock) : ForwardingCommunicator(inner), clock_(clock) {}
    std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override {
      clock_.Tick();
      return inner().AllReduceSum(tensor);
    }
    std::unique_ptr<Collective> Broadcast(const at::Tensor& tensor, int root) override {
      clock_.Tick();
      return inner().Broadcast(tensor, root);
    }
    std::unique_ptr<Collective> AllGather(const at::Tensor& out, const at::Tensor& in) override {
      clock_.Tick();
      return inner().AllGather(out, in);
    }
    std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) override {
      clock_.Tick();
      return inner().ReduceScatterSum(out, in);
    }

   private:
    Clock& clock_;
  };

  // Equal groups stay one object, by which a strategy recognises that their operations have one order.
  Communicator* Late(Communicator* inner) {
    if (clock_.delay.count() == 0) return inner;
    for (const auto& made : made_) {
      if (&made->inner() == inner) return made.get();
    }
    made_.push_back(std::make_unique<LateCommunicator>(*inner, clock_));
    return made_.back().get();
  }

  Clock clock_;
  std::vector<std::unique_ptr<LateCommunicator>> made_;
  MeshCommunicators communicators_;
};

}  // namespace trainyard
