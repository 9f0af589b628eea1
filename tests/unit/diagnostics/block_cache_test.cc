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
std::map<void*, size_t> made;
uintptr_t next_block = 1;
int64_t idle = 0;

BlockCache::System FakeSystem() {
  made.clear();
  idle = 0;
  return {.make =
              [](size_t bytes) {
                void* block = reinterpret_cast<void*>(next_block++);
                made[block] = bytes;
                return block;
              },
          .free = [](void* block) { made.erase(block); },
          .size_of = [](const void* block) { return made.at(const_cast<void*>(block)) + 24; },
          .idle = [](int64_t delta) { idle += delta; }};
}

TEST(BlockCache, ReusesAFreedBlockForTheSameNumberOfPages) {
  BlockCache cache(FakeSystem());
  void* first = cache.Take(kMiB);
  cache.Give(first);

  EXPECT_EQ(cache.Take(kMiB - 100), first);
  EXPECT_NE(cache.Take(kMiB), first) << "it is in use";
  EXPECT_EQ(cache.counts().made, 2);
}

TEST(BlockCache, LeavesSmallBlocksToTheSystem) {
  BlockCache cache(FakeSystem());
  cache.Give(cache.Take(100));
  cache.Give(cache.Take(BlockCache::kMinBytes / 2));

  EXPECT_TRUE(made.empty());
  EXPECT_EQ(cache.counts().made, 0);
  cache.Give(nullptr);
}

// Whatever the system adds to a request, each block that was counted as allocated is counted as freed, and no other.
TEST(BlockCache, CountsAllocationsAndFreesConsistentlyAroundTheLimit) {
  BlockCache cache(FakeSystem());
  for (size_t bytes = BlockCache::kMinBytes - 8192; bytes < BlockCache::kMinBytes + 8192; bytes += 8) {
    cache.Give(cache.Take(bytes));
    ASSERT_EQ(cache.counts().out_bytes, 0) << bytes;
  }
  EXPECT_EQ(cache.counts().made, 3) << "blocks of 16, 17 and 18 pages";
  EXPECT_EQ(cache.counts().idle_bytes, idle);
}

TEST(BlockCache, RepeatedStep_AllocatesNothing) {
  BlockCache cache(FakeSystem());
  const size_t sizes[] = {kMiB, 3 * kMiB, kMiB, 200 << 10, 5 * kMiB};
  int64_t after_first = 0;
  for (int step = 0; step < 5; ++step) {
    std::vector<void*> blocks;
    for (size_t bytes : sizes) blocks.push_back(cache.Take(bytes));
    for (void* block : blocks) cache.Give(block);
    if (step == 0) after_first = cache.counts().made;
  }

  EXPECT_EQ(after_first, 5);
  EXPECT_EQ(cache.counts().made, after_first);
  EXPECT_EQ(cache.counts().freed, 0);
}

TEST(BlockCache, IsBounded_AndDropsTheLongestIdleBlocksFirst) {
  BlockCache cache(FakeSystem());
  constexpr int64_t kMost = 64 * kMiB;
  void* oldest = cache.Take(kMost);
  cache.Give(oldest);
  // Always new sizes, none of which fits an idle block.
  for (int i = 1; i <= 60; ++i) {
    cache.Give(cache.Take(kMiB + i * 4096));
    const BlockCache::Counts counts = cache.counts();
    ASSERT_LE(counts.idle_bytes + counts.out_bytes, BlockCache::kRoom * kMost + BlockCache::kSlack);
    ASSERT_EQ(counts.idle_bytes, idle);
  }

  EXPECT_EQ(cache.counts().freed, 1);
  EXPECT_EQ(made.count(oldest), 0u) << "another block was dropped before the longest idle one";
}

TEST(BlockCache, Clear_ReturnsAllBlocks) {
  BlockCache cache(FakeSystem());
  void* kept = cache.Take(kMiB);
  cache.Give(cache.Take(2 * kMiB));

  cache.Clear();

  EXPECT_EQ(made.size(), 1u);
  EXPECT_EQ(made.count(kept), 1u);
  EXPECT_EQ(idle, 0);
}

TEST(BlockCache, Threads_NeverGetTheSameBlock) {
  static std::atomic<int64_t> idle_bytes = 0;
  BlockCache cache({.make = malloc,
                    .free = free,
                    .size_of = [](const void*) { return size_t{2} * kMiB; },
                    .idle = [](int64_t delta) { idle_bytes += delta; }});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&cache, thread] {
      for (int i = 0; i < 500; ++i) {
        auto* block = static_cast<volatile int*>(cache.Take(2 * kMiB));
        *block = thread;
        std::this_thread::yield();
        ASSERT_EQ(*block, thread);
        cache.Give(const_cast<int*>(block));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_LE(cache.counts().made, 4);
  cache.Clear();
  EXPECT_EQ(idle_bytes, 0);
}

}  // namespace
}  // namespace trainyard
