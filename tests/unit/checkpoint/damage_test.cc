// Damage at random places: the reader must detect every flipped bit and every truncation.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <random>

#include "checkpoint/reader.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

constexpr int kFlips = 10000;
constexpr int kTruncations = 1000;

// Returns the seed that TRAINYARD_DAMAGE_SEED gives, else a fixed one.
uint64_t Seed() {
  const char* given = getenv("TRAINYARD_DAMAGE_SEED");
  const uint64_t seed = given == nullptr ? 1 : strtoull(given, nullptr, 10);
  printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

class DamageTest : public testing::Test {
 protected:
  DamageTest() {
    SmallState state(1);
    path_ = WriteCheckpoint(folder_.path(), SmallManifest(1), state.tensors(), FileSystem::Real())->path;
    for (const char* name : {"/manifest.json", "/shard-00000.safetensors"}) {
      files_.push_back(path_ + name);
      sizes_.push_back(ReadFile(files_.back())->size());
    }
  }
  // Draws a file and an offset in it. Each byte of the checkpoint has the same probability.
  std::pair<size_t, uint64_t> Draw() {
    uint64_t at = std::uniform_int_distribution<uint64_t>(0, sizes_[0] + sizes_[1] - 1)(random_);
    return at < sizes_[0] ? std::pair<size_t, uint64_t>{0, at} : std::pair<size_t, uint64_t>{1, at - sizes_[0]};
  }

  const TemporaryFolder folder_;
  std::string path_;
  std::vector<std::string> files_;
  std::vector<uint64_t> sizes_;
  std::mt19937_64 random_{Seed()};
};

TEST_F(DamageTest, AnyFlippedBit_IsDetected) {
  for (int i = 0; i < kFlips; ++i) {
    auto [file, at] = Draw();
    const int bit = std::uniform_int_distribution<int>(0, 7)(random_);
    FlipBit(files_[file], at, bit);

    EXPECT_FALSE(Checkpoint::Open(path_).ok()) << files_[file] << " byte " << at << " bit " << bit;

    FlipBit(files_[file], at, bit);
  }
  EXPECT_TRUE(Checkpoint::Open(path_).ok());
}

TEST_F(DamageTest, AnyTruncatedFile_IsDetected) {
  for (int i = 0; i < kTruncations; ++i) {
    auto [file, length] = Draw();
    const std::string whole = *ReadFile(files_[file]);
    ASSERT_EQ(truncate(files_[file].c_str(), static_cast<off_t>(length)), 0);

    EXPECT_FALSE(Checkpoint::Open(path_).ok()) << files_[file] << " cut to " << length;

    const int fd = open(files_[file].c_str(), O_WRONLY);
    ASSERT_EQ(pwrite(fd, whole.data(), whole.size(), 0), static_cast<ssize_t>(whole.size()));
    close(fd);
  }
  EXPECT_TRUE(Checkpoint::Open(path_).ok());
}

}  // namespace
}  // namespace trainyard
