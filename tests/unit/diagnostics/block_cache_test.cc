// Freed blocks serve later requests of the same size, and idle memory never exceeds its limit.
#include "worker/diagnostics/block_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <thread>
#include <vector>

namespace trainyard {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// A system that returns numbered blocks, each slightly larger than requested; used by one test at a time.
std::map<void*, size_t> live_blocks;
uintptr_t next_block = 1;
int64_t idle = 0;

BlockCache::System FakeSystem() {
  live_blocks.clear();
  idle = 0;
  return {.allocate =
              [](size_t bytes) {
                void* block = reinterpret_cast<void*>(next_block++);
                live_blocks[block] = bytes;
                return block;
              },
          .free = [](void* block) { live_blocks.erase(block); },
          .size_of = [](const void* block) { return live_blocks.at(const_cast<void*>(block)) + 24; },
          .idle = [](int64_t delta) { idle += delta; }};
}

TEST(BlockCache, ReusesAFreedBlockForTheSameNumberOfPages) {
  BlockCache cache(FakeSystem());
  void* first = cache.Allocate(kMiB);
  cache.Free(first);

  EXPECT_EQ(cache.Allocate(kMiB - 100), first);
  EXPECT_NE(cache.Allocate(kMiB), first) << "the first block is in use";
  EXPECT_EQ(cache.counts().allocated, 2);
}

TEST(BlockCache, LeavesSmallBlocksToTheSystem) {
  BlockCache cache(FakeSystem());
  cache.Free(cache.Allocate(100));
  cache.Free(cache.Allocate(BlockCache::kMinBytes / 2));

  EXPECT_TRUE(live_blocks.empty());
  EXPECT_EQ(cache.counts().allocated, 0);
  cache.Free(nullptr);
}

// The system may return larger blocks. A block is counted as freed if and only if it was counted as allocated.
TEST(BlockCache, CountsAllocationsAndFreesConsistentlyAroundTheLimit) {
  BlockCache cache(FakeSystem());
  for (size_t bytes = BlockCache::kMinBytes - 8192; bytes < BlockCache::kMinBytes + 8192; bytes += 8) {
    cache.Free(cache.Allocate(bytes));
    ASSERT_EQ(cache.counts().in_use_bytes, 0) << bytes;
  }
  EXPECT_EQ(cache.counts().allocated, 3) << "blocks of 16, 17 and 18 pages";
  EXPECT_EQ(cache.counts().idle_bytes, idle);
}

TEST(BlockCache, RepeatedStep_AllocatesNothing) {
  BlockCache cache(FakeSystem());
  const size_t sizes[] = {kMiB, 3 * kMiB, kMiB, 200 << 10, 5 * kMiB};
  int64_t after_first = 0;
  for (int step = 0; step < 5; ++step) {
    std::vector<void*> blocks;
    for (size_t bytes : sizes) blocks.push_back(cache.Allocate(bytes));
    for (void* block : blocks) cache.Free(block);
    if (step == 0) after_first = cache.counts().allocated;
  }

  EXPECT_EQ(after_first, 5);
  EXPECT_EQ(cache.counts().allocated, after_first);
  EXPECT_EQ(cache.counts().freed, 0);
}

TEST(BlockCache, IsBounded_AndDropsTheLongestIdleBlocksFirst) {
  BlockCache cache(FakeSystem());
  constexpr int64_t kPeakBytes = 64 * kMiB;
  void* oldest = cache.Allocate(kPeakBytes);
  cache.Free(oldest);
  // Each block has a new size, so that no idle block fits.
  for (int i = 1; i <= 60; ++i) {
    cache.Free(cache.Allocate(kMiB + i * 4096));
    const BlockCache::Counts counts = cache.counts();
    ASSERT_LE(counts.idle_bytes + counts.in_use_bytes, BlockCache::kMaxGrowth * kPeakBytes + BlockCache::kSlack);
    ASSERT_EQ(counts.idle_bytes, idle);
  }

  EXPECT_EQ(cache.counts().freed, 1);
  EXPECT_EQ(live_blocks.count(oldest), 0u) << "another block was dropped before the longest idle one";
}

TEST(BlockCache, Clear_ReturnsAllBlocks) {
  BlockCache cache(FakeSystem());
  void* kept = cache.Allocate(kMiB);
  cache.Free(cache.Allocate(2 * kMiB));

  cache.Clear();

  EXPECT_EQ(live_blocks.size(), 1u);
  EXPECT_EQ(live_blocks.count(kept), 1u);
  EXPECT_EQ(idle, 0);
}

TEST(BlockCache, Threads_NeverGetTheSameBlock) {
  static std::atomic<int64_t> idle_bytes = 0;
  BlockCache cache({.allocate = malloc,
                    .free = free,
                    .size_of = [](const void*) { return size_t{2} * kMiB; },
                    .idle = [](int64_t delta) { idle_bytes += delta; }});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&cache, thread] {
      for (int i = 0; i < 500; ++i) {
        auto* block = static_cast<volatile int*>(cache.Allocate(2 * kMiB));
        *block = thread;
        std::this_thread::yield();
        ASSERT_EQ(*block, thread);
        cache.Free(const_cast<int*>(block));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_LE(cache.counts().allocated, 4);
  cache.Clear();
  EXPECT_EQ(idle_bytes, 0);
}

}  // namespace
}  // namespace trainyard
