// Device tensors that are exchanged through host memory. A CPU takes the place of the device.
#include "worker/collectives/device_communicator.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/parity/forwarding_communicator.h"
#include "worker/collectives/single_communicator.h"

namespace trainyard {
namespace {

// A host communicator that records the addresses of its tensors and, like gloo's thread, releases them long after the
// wait for their operation has ended.
class SlowReleaseCommunicator final : public ForwardingCommunicator {
 public:
  explicit SlowReleaseCommunicator(Communicator& inner) : ForwardingCommunicator(inner) {}
  std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override {
    Retain(tensor);
    return inner().AllReduceSum(tensor);
  }
  std::unique_ptr<Collective> Broadcast(const at::Tensor& tensor, int root) override {
    Retain(tensor);
    return inner().Broadcast(tensor, root);
  }
  std::unique_ptr<Collective> AllGather(const at::Tensor& out, const at::Tensor& in) override {
    Retain(out);
    Retain(in);
    return inner().AllGather(out, in);
  }
  std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) override {
    Retain(out);
    Retain(in);
    return inner().ReduceScatterSum(out, in);
  }
  const std::set<const void*>& addresses() const { return addresses_; }

 private:
  void Retain(const at::Tensor& tensor) {
    retained_.push_back(tensor);
    addresses_.insert(tensor.const_data_ptr());
  }
  std::vector<at::Tensor> retained_;
  std::set<const void*> addresses_;
};

class StagedTest : public ::testing::Test {
 protected:
  StagedTest() {
    auto host = std::make_unique<SlowReleaseCommunicator>(*single_);
    host_ = host.get();
    comm_ = NewDeviceCommunicator(at::kCPU, std::move(host), /*on_device=*/nullptr);
  }

  const std::unique_ptr<Communicator> single_ = NewSingleCommunicator();
  SlowReleaseCommunicator* host_ = nullptr;
  std::unique_ptr<Communicator> comm_;
};

at::Tensor Filled(int64_t size, double value) { return at::full({size}, value); }

TEST_F(StagedTest, SlowTransport_ReusesTheHostMemoryOfTheFirstStep) {
  size_t after_first = 0;
  for (int step = 1; step <= 5; ++step) {
    at::Tensor sum = Filled(1'000, step), whole = Filled(600, 0), part = Filled(600, 0);
    auto reduce = comm_->AllReduceSum(sum);
    auto gather = comm_->AllGather(whole, Filled(600, step + 1));
    auto scatter = comm_->ReduceScatterSum(part, Filled(600, step + 2));
    for (Collective* each : {reduce.get(), gather.get(), scatter.get()}) ASSERT_EQ(each->Wait(), absl::OkStatus());

    EXPECT_TRUE(sum.eq(step).all().item<bool>());
    EXPECT_TRUE(whole.eq(step + 1).all().item<bool>());
    EXPECT_TRUE(part.eq(step + 2).all().item<bool>());
    if (step == 1) after_first = host_->addresses().size();
  }
  EXPECT_EQ(after_first, 5u) << "expected one host tensor for the sum, and two for each of the other two operations, "
                                "because all three are in progress at the same time";
  EXPECT_EQ(host_->addresses().size(), after_first);
}

// The transport may still write to the memory.
TEST_F(StagedTest, MemoryOfAnOperationWithoutWait_IsNotReused) {
  at::Tensor first = Filled(8, 1), second = Filled(8, 2);
  comm_->AllReduceSum(first).reset();

  ASSERT_EQ(comm_->AllReduceSum(second)->Wait(), absl::OkStatus());

  EXPECT_EQ(host_->addresses().size(), 2u);
  EXPECT_TRUE(second.eq(2).all().item<bool>());
}

TEST_F(StagedTest, SecondWait_HasNoEffect) {
  at::Tensor tensor = Filled(8, 1);
  auto reduce = comm_->AllReduceSum(tensor);
  ASSERT_EQ(reduce->Wait(), absl::OkStatus());
  tensor.fill_(7);

  EXPECT_EQ(reduce->Wait(), absl::OkStatus());

  EXPECT_TRUE(tensor.eq(7).all().item<bool>());
}

}  // namespace
}  // namespace trainyard
