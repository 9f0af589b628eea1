// Allocated memory is either tracked under a kind or counted as an activation; peaks measure simultaneous use.
#include "worker/diagnostics/ledger.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <thread>

namespace trainyard {
namespace {

constexpr int64_t kSize = 1 << 20;
constexpr int64_t kSlack = 16384;  // malloc's overhead per block

at::Tensor NewTensor(int64_t bytes = kSize) { return at::empty({bytes}, at::kByte); }

class LedgerTest : public testing::Test {
 protected:
  LedgerTest() {
    before_ = ledger_.Read();
    ledger_.ResetPeaks();
  }
  KindUse Now(MemoryKind kind) const {
    KindUse use = ledger_.Read()[static_cast<int>(kind)];
    use.bytes -= before_[static_cast<int>(kind)].bytes;
    use.peak_bytes -= before_[static_cast<int>(kind)].bytes;
    return use;
  }
  void ExpectNear(int64_t found, int64_t expected) {
    EXPECT_GE(found, expected);
    EXPECT_LE(found, expected + kSlack);
  }

  Ledger& ledger_ = Ledger::ForProcess();
  std::vector<KindUse> before_;
};

TEST_F(LedgerTest, UntrackedMemory_IsAnActivation) {
  {
    at::Tensor kept = NewTensor();
    { at::Tensor temporary = NewTensor(); }
    ExpectNear(Now(MemoryKind::kActivations).bytes, kSize);
  }
  EXPECT_EQ(Now(MemoryKind::kActivations).bytes, 0);
  ExpectNear(Now(MemoryKind::kActivations).peak_bytes, 2 * kSize);
}

TEST_F(LedgerTest, TrackedMemory_HasItsKind_AndWasNeverAnActivation) {
  const int64_t in_use = ledger_.in_use().now();
  TrackedMemory use;
  at::Tensor tensor = TrackTensor(&ledger_, MemoryKind::kParameters, use, [] {
    at::Tensor scratch = NewTensor();  // freed when the tensor has been created
    return NewTensor(3 * kSize);
  });
  ExpectNear(Now(MemoryKind::kParameters).bytes, 3 * kSize);
  EXPECT_EQ(Now(MemoryKind::kActivations).bytes, 0);
  EXPECT_EQ(Now(MemoryKind::kActivations).peak_bytes, 0);

  use.SetKind(MemoryKind::kGradients);
  EXPECT_EQ(Now(MemoryKind::kParameters).bytes, 0);
  ExpectNear(Now(MemoryKind::kGradients).bytes, 3 * kSize);
  const int64_t reserved = Now(MemoryKind::kReserved).bytes;
  use.SetKind(MemoryKind::kReserved);
  EXPECT_EQ(ledger_.in_use().now(), in_use) << "idle memory is not in use";
  ExpectNear(Now(MemoryKind::kReserved).bytes, reserved + 3 * kSize);

  tensor.reset();
  use = TrackedMemory();
  EXPECT_EQ(ledger_.in_use().now(), in_use);
  EXPECT_EQ(Now(MemoryKind::kActivations).bytes, 0);
  ExpectNear(Now(MemoryKind::kGradients).peak_bytes, 3 * kSize);
}

TEST_F(LedgerTest, MemoryThatOutlivesItsTracker_IsAnActivation) {
  at::Tensor tensor;
  {
    TrackedMemory use;
    tensor = TrackTensor(&ledger_, MemoryKind::kOptimizer, use, [] { return NewTensor(); });
  }
  ExpectNear(Now(MemoryKind::kActivations).bytes, kSize);
  tensor.reset();
  EXPECT_EQ(Now(MemoryKind::kActivations).bytes, 0);
}

TEST_F(LedgerTest, WithoutALedger_NothingIsTracked) {
  TrackedMemory use;
  at::Tensor tensor = TrackTensor(nullptr, MemoryKind::kOptimizer, use, [] { return NewTensor(); });
  use.SetKind(MemoryKind::kGradients);

  ExpectNear(Now(MemoryKind::kActivations).bytes, kSize);
  EXPECT_EQ(Now(MemoryKind::kOptimizer).bytes, 0);
}

TEST_F(LedgerTest, CachedBlock_IsReserved) {
  { at::Tensor temporary = NewTensor(7 * kSize); }
  const int64_t reserved = Now(MemoryKind::kReserved).bytes, made = ledger_.num_blocks_allocated();
  EXPECT_GE(reserved, 7 * kSize);

  at::Tensor next = NewTensor(7 * kSize);

  EXPECT_EQ(Now(MemoryKind::kReserved).bytes, reserved - 7 * kSize);
  ExpectNear(Now(MemoryKind::kActivations).bytes, 7 * kSize);
  EXPECT_EQ(ledger_.num_blocks_allocated(), made);
}

TEST_F(LedgerTest, MemoryOfSeveralThreads_IsAddedUp) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int k = 0; k < 200; ++k) at::Tensor temporary = NewTensor(kSize / 4);
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(Now(MemoryKind::kActivations).bytes, 0);
  EXPECT_LE(Now(MemoryKind::kActivations).peak_bytes, kSize + 4 * kSlack);
}

}  // namespace
}  // namespace trainyard
