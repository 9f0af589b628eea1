// Communicators in which one rank is late for one operation of each step: for the first operation in step 1, for the
// second in step 2, and so on. Also channels that are late at random. Results must not depend on which rank waits.
#pragma once

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/parity/forwarding_communicator.h"
#include "worker/collectives/group.h"
#include "worker/collectives/pipeline_channels.h"
#include "worker/parallel/mesh_communicators.h"

namespace trainyard {

class DelayedGroups {
 public:
  // If `delay_ms` is 0, the communicators are those of `groups`. Does not own `groups`.
  DelayedGroups(MeshGroups& groups, int64_t delay_ms) : delay_{.delay = std::chrono::milliseconds(delay_ms)} {
    communicators_ = {.job = Delayed(groups.world),
                      .data = Delayed(groups.data),
                      .shard = Delayed(groups.shard),
                      .replicate = Delayed(groups.replicate),
                      .tensor = Delayed(groups.tensor),
                      .tied = Delayed(groups.tied)};
    delay_.rank = groups.world->rank();
    delay_.world = groups.world->world_size();
  }

  const MeshCommunicators& communicators() const { return communicators_; }
  void BeginStep(int64_t step) {
    delay_.delayed_operation = step;
    delay_.started = 0;
  }
  void EndStep() { delay_.delayed_operation = 0; }

 private:
  struct OperationDelay {
    std::chrono::milliseconds delay{0};
    int rank = 0, world = 1;
    int64_t delayed_operation = 0;  // the number of the delayed operation; 0: none
    int64_t started = 0;            // operations started in this step
    void OnOperation() {
      if (++started == delayed_operation && delayed_operation % world == rank) std::this_thread::sleep_for(delay);
    }
  };

  class DelayedCommunicator final : public ForwardingCommunicator {
   public:
    DelayedCommunicator(Communicator& inner, OperationDelay& delay) : ForwardingCommunicator(inner), delay_(delay) {}
    std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override {
      delay_.OnOperation();
      return inner().AllReduceSum(tensor);
    }
    std::unique_ptr<Collective> Broadcast(const at::Tensor& tensor, int root) override {
      delay_.OnOperation();
      return inner().Broadcast(tensor, root);
    }
    std::unique_ptr<Collective> AllGather(const at::Tensor& out, const at::Tensor& in) override {
      delay_.OnOperation();
      return inner().AllGather(out, in);
    }
    std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) override {
      delay_.OnOperation();
      return inner().ReduceScatterSum(out, in);
    }

   private:
    OperationDelay& delay_;
  };

  // Axes that share a communicator also share the delayed one: a strategy must see that it is the same object.
  Communicator* Delayed(Communicator* inner) {
    if (inner == nullptr || delay_.delay.count() == 0) return inner;
    for (const auto& made : made_) {
      if (&made->inner() == inner) return made.get();
    }
    made_.push_back(std::make_unique<DelayedCommunicator>(*inner, delay_));
    return made_.back().get();
  }

  OperationDelay delay_;
  std::vector<std::unique_ptr<DelayedCommunicator>> made_;
  MeshCommunicators communicators_;
};

// Channels that wait for a random time, at most a given one, before each packet that they send or receive.
class DelayedChannels {
 public:
  // If `delay_us` is 0, the channels are those of `channels`. Does not own `channels`.
  DelayedChannels(const PipelineChannels& channels, int rank, int64_t delay_us)
      : random_(static_cast<uint64_t>(rank)), delay_us_(delay_us) {
    channels_ = {.from_previous = Delayed(channels.from_previous),
                 .to_next = Delayed(channels.to_next),
                 .from_next = Delayed(channels.from_next),
                 .to_previous = Delayed(channels.to_previous)};
  }

  const PipelineChannels& channels() const { return channels_; }

 private:
  class DelayedChannel final : public Channel {
   public:
    DelayedChannel(Channel& inner, DelayedChannels& delays) : inner_(inner), delays_(delays) {}
    const std::string& name() const override { return inner_.name(); }
    int from() const override { return inner_.from(); }
    int to() const override { return inner_.to(); }
    absl::Status Send(const PacketHeader& header, const std::vector<at::Tensor>& tensors) override {
      delays_.Wait();
      return inner_.Send(header, tensors);
    }
    absl::StatusOr<std::vector<at::Tensor>> Receive(const PacketHeader& expected) override {
      delays_.Wait();
      return inner_.Receive(expected);
    }
    void Abort(absl::string_view reason) override { inner_.Abort(reason); }
    CollectiveProgress progress() const override { return inner_.progress(); }
    double waited_s() const override { return inner_.waited_s(); }

   private:
    Channel& inner_;
    DelayedChannels& delays_;
  };

  void Wait() {
    const int64_t us = static_cast<int64_t>(random_() % static_cast<uint64_t>(delay_us_ + 1));
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  }
  Channel* Delayed(Channel* inner) {
    if (inner == nullptr || delay_us_ == 0) return inner;
    made_.push_back(std::make_unique<DelayedChannel>(*inner, *this));
    return made_.back().get();
  }

  std::mt19937_64 random_;
  const int64_t delay_us_;
  std::vector<std::unique_ptr<DelayedChannel>> made_;
  PipelineChannels channels_;
};

}  // namespace trainyard
