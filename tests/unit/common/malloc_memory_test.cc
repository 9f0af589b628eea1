#include "common/malloc_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "absl/synchronization/blocking_counter.h"

namespace trainyard {
namespace {

constexpr uint64_t kMiB = 1 << 20;

#ifndef TRAINYARD_SANITIZED  // sanitizers replace malloc
TEST(MallocMemory, FreedMemoryBelowAUsedBlock_IsUnused_UntilItIsReturned) {
  constexpr size_t kBlocks = 2'000, kBlockBytes = 32 << 10;  // below the size that malloc maps separately
  constexpr uint64_t kHalf = kBlocks * kBlockBytes / 2;
  std::vector<std::unique_ptr<char[]>> blocks;
  for (size_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(std::make_unique<char[]>(kBlockBytes));
    memset(blocks.back().get(), 1, kBlockBytes);
  }
  const uint64_t when_used = UnusedResidentBytes();
  // The last block stays in use, so that free() cannot return the memory below it by itself.
  blocks.erase(blocks.begin(), blocks.end() - 1);
  EXPECT_GT(UnusedResidentBytes(), when_used + kHalf);
  ReturnFreedMemory();
  EXPECT_LT(UnusedResidentBytes(), when_used + kHalf);
}

TEST(MallocMemory, LargeBlocks_AreReturnedWhenTheyAreFreed) {
  LimitMallocMemory();
  for (int round = 0; round < 3; ++round) {
    const uint64_t before = UnusedResidentBytes();
    std::vector<std::unique_ptr<char[]>> blocks;
    std::vector<std::unique_ptr<int>> small;  // between the blocks: an arena that held both could not shrink
    for (int i = 0; i < 32; ++i) {
      blocks.push_back(std::make_unique<char[]>(kMiB));
      memset(blocks.back().get(), 1, kMiB);
      small.push_back(std::make_unique<int>(i));
    }
    blocks.clear();
    EXPECT_LT(UnusedResidentBytes(), before + 2 * kMiB);
  }
}
#endif

TEST(TrimPolicy, Trims_WhenUnusedMemoryHasGrownSinceTheLastTime) {
  constexpr uint64_t kUsed = 2'560 * kMiB;  // unused memory may grow by 1/256 of this, which is 10 MiB
  TrimPolicy policy;
  EXPECT_FALSE(policy.ShouldTrim(9 * kMiB, kUsed));
  EXPECT_TRUE(policy.ShouldTrim(40 * kMiB, kUsed));
  policy.Trimmed(20 * kMiB);
  EXPECT_FALSE(policy.ShouldTrim(29 * kMiB, kUsed)) << "growth counts from the 20 MiB that the last trim left";
  EXPECT_TRUE(policy.ShouldTrim(30 * kMiB, kUsed));
  policy.Trimmed(20 * kMiB);
  EXPECT_FALSE(policy.ShouldTrim(5 * kMiB, kUsed)) << "the program uses 15 of the 20 MiB again";
  EXPECT_TRUE(policy.ShouldTrim(15 * kMiB, kUsed));
}

TEST(TrimPolicy, AllowsGrowthInProportionToTheUsedMemory_WithinLimits) {
  TrimPolicy policy;
  EXPECT_FALSE(policy.ShouldTrim(kMiB / 4 - 1, /*used_bytes=*/kMiB));
  EXPECT_TRUE(policy.ShouldTrim(kMiB / 4, /*used_bytes=*/kMiB));
  EXPECT_FALSE(policy.ShouldTrim(16 * kMiB - 1, /*used_bytes=*/4096 * kMiB));
  EXPECT_TRUE(policy.ShouldTrim(16 * kMiB, /*used_bytes=*/4096 * kMiB));
}

TEST(MemoryTrimmer, Trims_WheneverThePolicySays_UntilItIsDestroyed) {
  absl::BlockingCounter three(3);
  int trims = 0;
  uint64_t unused = 0;
  {
    MemoryTrimmer trimmer({.interval = absl::Milliseconds(1),
                           .unused_bytes = [&] { return unused += kMiB / 8; },
                           .used_bytes = [] { return uint64_t{0}; },
                           .trim =
                               [&] {
                                 if (++trims <= 3) three.DecrementCount();
                               }});
    three.Wait();
  }
  EXPECT_GE(trims, 3);
}

TEST(MemoryTrimmer, IsDestroyedAtOnce_WithoutATrim) {
  int trims = 0;
  {
    MemoryTrimmer trimmer({.interval = absl::Hours(1), .trim = [&] { ++trims; }});
  }
  EXPECT_EQ(trims, 0);
}

}  // namespace
}  // namespace trainyard
