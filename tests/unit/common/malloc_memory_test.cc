#include "common/malloc_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/synchronization/blocking_counter.h"

namespace trainyard {
namespace {

uint64_t ResidentBytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

#ifndef TRAINYARD_SANITIZED  // sanitizers replace malloc
TEST(MallocMemory, FreedMemoryBelowAUsedBlock_IsReturnedToTheSystem) {
  constexpr size_t kBlocks = 1'000, kBlockBytes = 32 << 10;  // below the size that malloc maps separately
  std::vector<std::unique_ptr<char[]>> blocks;
  for (size_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(std::make_unique<char[]>(kBlockBytes));
    memset(blocks.back().get(), 1, kBlockBytes);
  }
  // The last block stays in use, so that free() cannot return the memory below it by itself.
  blocks.erase(blocks.begin(), blocks.end() - 1);
  const uint64_t before = ResidentBytes();
  ReturnFreedMemory();
  EXPECT_LT(ResidentBytes() + kBlocks * kBlockBytes / 2, before);
}
#endif

TEST(MallocMemory, Trimmer_TrimsOncePerInterval_UntilItIsDestroyed) {
  absl::BlockingCounter three(3);
  int trims = 0;
  {
    MemoryTrimmer trimmer(absl::Milliseconds(1), [&] {
      if (++trims <= 3) three.DecrementCount();
    });
    three.Wait();
  }
  EXPECT_GE(trims, 3);
}

TEST(MallocMemory, Trimmer_IsDestroyedAtOnce_WithoutATrim) {
  int trims = 0;
  {
    MemoryTrimmer trimmer(absl::Hours(1), [&] { ++trims; });
  }
  EXPECT_EQ(trims, 0);
}

}  // namespace
}  // namespace trainyard
