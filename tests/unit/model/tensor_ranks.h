// Runs the ranks of a tensor group as threads, over shared memory, and counts the operations of the group.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/status_macros.h"
#include "tests/parity/stores.h"
#include "worker/collectives/group.h"
#include "worker/model/tensor_group.h"
#include "worker/parallel/communicator_tensor_group.h"

namespace trainyard {

// Counts what goes over the communicator.
class CountingGroup final : public TensorGroup {
 public:
  explicit CountingGroup(Communicator& used) : communicator(used), group_(used, Clock::GetSteadyClock()) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  void StartSum(const at::Tensor& tensor) override {
    ++sums;
    group_.StartSum(tensor);
  }
  void StartAllGather(const at::Tensor& out, const at::Tensor& in) override {
    ++gathers;
    group_.StartAllGather(out, in);
  }
  void StartReduceScatter(const at::Tensor& out, const at::Tensor& in) override {
    ++scatters;
    group_.StartReduceScatter(out, in);
  }
  void Wait() override { group_.Wait(); }

  Communicator& communicator;
  int sums = 0, gathers = 0, scatters = 0;

 private:
  CommunicatorTensorGroup group_;
};

// Runs `main` as every rank of a tensor group. `meets_at_end`: a rank that has ended waits until all ranks have ended.
inline void OnTensorRanks(int size, const std::function<void(CountingGroup& group)>& main, bool meets_at_end = true) {
  MemoryStore store;
  std::vector<absl::Status> results(static_cast<size_t>(size));
  const auto run = [&](int rank) -> absl::Status {
    at::set_num_threads(1);
    ASSIGN_OR_RETURN(auto communicator,
                     NewGroup({.name = "tensor", .world_size = size, .rank = rank, .store = &store}));
    CountingGroup group(*communicator);
    try {
      main(group);
    } catch (const std::exception& error) {
      communicator->Abort("a rank of the test failed");
      return absl::InternalError(error.what());
    }
    return meets_at_end ? communicator->Barrier()->Wait() : absl::OkStatus();
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      results[static_cast<size_t>(rank)] = run(rank);
      if (!results[static_cast<size_t>(rank)].ok()) store.EndGeneration();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_TRUE(results[static_cast<size_t>(rank)].ok())
        << "rank " << rank << ": " << results[static_cast<size_t>(rank)];
  }
}

}  // namespace trainyard
