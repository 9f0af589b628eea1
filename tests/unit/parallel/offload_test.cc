// Optimizer state in host memory is updated tile by tile, with device memory for two tiles, and has the same bits
// as after a plain update. Jobs that need too much host memory are refused.
#include "worker/parallel/offload.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "common/files.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

using testing::HasSubstr;

struct Types {
  const char* name = "";
  at::ScalarType master = at::kFloat, state = at::kFloat, gradient = at::kFloat;
  at::ScalarType weight = at::kFloat;
};
const Types kTypes[] = {{"fp32", at::kFloat, at::kFloat, at::kFloat, at::kFloat},
                        {"fp64", at::kDouble, at::kDouble, at::kDouble, at::kDouble},
                        {"bf16", at::kFloat, at::kFloat, at::kFloat, at::kBFloat16},
                        {"bf16_masters", at::kBFloat16, at::kBFloat16, at::kFloat, at::kBFloat16}};

constexpr int64_t kSizes[] = {160, 48, 16};  // of three ranges, of which only the first has weight decay

// Returns ranges with the same values at each call; with `with_weights`, their weights are copies of the masters.
std::vector<AdamW::Range> NewRanges(const Types& types, const at::Tensor& values, const at::Tensor& gradients,
                                    bool with_weights) {
  std::vector<AdamW::Range> ranges;
  int64_t first = 0;
  for (int64_t size : kSizes) {
    auto part = [&](const at::Tensor& whole, at::ScalarType type) {
      return whole.narrow(0, first, size).to(type, false, true);
    };
    AdamW::Range range{.parameters = part(values, types.master),
                       .gradients = part(gradients, types.gradient),
                       .decays = first == 0,
                       .exp_avg = at::zeros({size}, types.state),
                       .exp_avg_sq = at::zeros({size}, types.state)};
    if (with_weights) range.weights = part(values, types.weight);
    range.spans = {{.offset = 0, .count = size / 2, .parameter = 3, .first_element = 100},
                   {.offset = size / 2, .count = size / 2, .parameter = 4, .first_element = 0}};
    ranges.push_back(std::move(range));
    first += size;
  }
  return ranges;
}

class TiledUpdateTest : public testing::TestWithParam<Types> {};
INSTANTIATE_TEST_SUITE_P(, TiledUpdateTest, testing::ValuesIn(kTypes),
                         [](const testing::TestParamInfo<Types>& info) { return std::string(info.param.name); });

TEST_P(TiledUpdateTest, HasTheBitsOfAPlainUpdate) {
  const Types& types = GetParam();
  const at::Tensor values = at::randn({224}, at::kDouble), gradients = at::randn({224}, at::kDouble);
  const bool has_own_weights = types.weight != types.master;  // apart from the masters, in a plain update too
  const std::vector<AdamW::Range> plain = NewRanges(types, values, gradients, has_own_weights);
  AdamW expected({.seed = 7}, plain);
  for (int step = 0; step < 3; ++step) expected.Step(1e-2, 0.5);

  for (int64_t tile : {16, 64, 1 << 20}) {
    for (bool weights_on_host : {false, true}) {
      const std::vector<AdamW::Range> offloaded = NewRanges(types, values, gradients, /*with_weights=*/true);
      AdamW optimizer({.seed = 7}, CutIntoTiles(offloaded, tile));
      TiledUpdate tiled(optimizer, {.parameters = true, .moments = true, .weights = weights_on_host}, nullptr);
      for (int step = 0; step < 3; ++step) tiled.Step(1e-2, 0.5);

      EXPECT_EQ(optimizer.num_steps(), 3u);
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_TRUE(offloaded[i].parameters.equal(plain[i].parameters)) << "tile " << tile << ", range " << i;
        EXPECT_TRUE(offloaded[i].exp_avg.equal(plain[i].exp_avg)) << "tile " << tile << ", range " << i;
        EXPECT_TRUE(offloaded[i].exp_avg_sq.equal(plain[i].exp_avg_sq)) << "tile " << tile << ", range " << i;
        EXPECT_TRUE(offloaded[i].weights.equal(has_own_weights ? plain[i].weights : plain[i].parameters))
            << "tile " << tile << ", range " << i;
      }
    }
  }
}

TEST(TiledUpdate, NeedsDeviceMemoryForTwoTiles) {
  Ledger& ledger = Ledger::ForProcess();
  const int64_t before = ledger.Read()[static_cast<int>(MemoryKind::kBuffers)].bytes;
  AdamW::Range range{.parameters = at::zeros({1 << 16}),
                     .gradients = at::zeros({1 << 16}),
                     .decays = true,
                     .exp_avg = at::zeros({1 << 16}),
                     .exp_avg_sq = at::zeros({1 << 16})};
  AdamW optimizer({}, CutIntoTiles({range}, 4096));
  ASSERT_EQ(optimizer.ranges().size(), 16u);

  TiledUpdate tiled(optimizer, {.parameters = false, .moments = true}, &ledger);

  const int64_t bytes = ledger.Read()[static_cast<int>(MemoryKind::kBuffers)].bytes - before;
  EXPECT_GE(bytes, 2 * 2 * 4096 * 4);
  EXPECT_LE(bytes, 2 * 2 * 4096 * 4 + 4096);
}

// A tensor without memory stands for a device that has failed.
TEST(TiledUpdate, ThrowsTheErrorOfACopy_InTheLoopsThread) {
  AdamW::Range range{.parameters = at::zeros({16}),
                     .gradients = at::zeros({16}),
                     .decays = true,
                     .exp_avg = at::empty({16}, at::TensorOptions().dtype(at::kFloat).device(at::kMeta)),
                     .exp_avg_sq = at::zeros({16})};
  AdamW optimizer({}, CutIntoTiles({range}, 16));
  TiledUpdate tiled(optimizer, {.parameters = false, .moments = true}, nullptr);

  EXPECT_THROW(tiled.Step(1e-2, 1), c10::Error);
}

TEST(CutIntoTiles, BoundsAreAligned_AndSpansAreDivided) {
  const std::vector<AdamW::Range> ranges = NewRanges(kTypes[0], at::randn({224}), at::randn({224}), false);

  const std::vector<AdamW::Range> tiles = CutIntoTiles(ranges, 70);

  std::vector<int64_t> sizes;
  for (const AdamW::Range& tile : tiles) sizes.push_back(tile.parameters.numel());
  EXPECT_THAT(sizes, testing::ElementsAre(64, 64, 32, 48, 16));
  // The second tile of the first range: the rest of one parameter and most of another.
  ASSERT_EQ(tiles[1].spans.size(), 2u);
  EXPECT_EQ(tiles[1].spans[0].count, 16);
  EXPECT_EQ(tiles[1].spans[0].first_element, 164);
  EXPECT_EQ(tiles[1].spans[1].offset, 16);
  EXPECT_EQ(tiles[1].spans[1].first_element, 0);
  EXPECT_TRUE(tiles[1].decays);
  EXPECT_FALSE(tiles[3].decays);
}

TEST(HostMemory, MustSufficeForAllRanksOfAHost) {
  const int64_t gib = int64_t{1} << 30;
  EXPECT_EQ(HostBytes({.optimizer = true}, 100, {.weight = 2, .master = 4, .moment = 4}), 1200);
  EXPECT_EQ(HostBytes({.optimizer = true, .parameters = true}, 100, {.weight = 2, .master = 4, .moment = 4}), 1400);
  EXPECT_EQ(HostBytes({}, 100, {}), 0);

  EXPECT_TRUE(CheckHostMemory(4 * gib, 2, 8 * gib).ok());
  const absl::Status refused = CheckHostMemory(5 * gib, 2, 8 * gib);

  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("needs 10.00 GiB of host memory on this host (5.00 GiB for "
                                                        "each of 2 ranks of this host), but only 8.00 GiB"));
}

TEST(HostMemory, IsReadFromTheKernel) {
  TemporaryFolder folder;
  std::ofstream(folder / "meminfo") << "MemTotal:       100 kB\nMemAvailable:    48 kB\n";

  EXPECT_EQ(AvailableHostBytes(folder.path()), 48 << 10);
  EXPECT_EQ(AvailableHostBytes(folder / "none"), 0);
  EXPECT_GT(AvailableHostBytes(), 0);
}

TEST(HostMemory, IsLimitedByTheCgroup) {
  TemporaryFolder folder;
  ASSERT_TRUE(MakeFolders(folder / "self").ok());
  std::ofstream(folder / "meminfo") << "MemAvailable:    48 kB\n";
  std::ofstream(folder / "self/cgroup") << "0::/\n";
  std::ofstream(folder / "self/mountinfo") << "36 35 0:30 / " << folder.path() << " rw - cgroup2 cgroup2 rw\n";
  std::ofstream(folder / "memory.max") << "20000\n";
  std::ofstream(folder / "memory.current") << "5000\n";

  EXPECT_EQ(AvailableHostBytes(folder.path()), 15000);
}

}  // namespace
}  // namespace trainyard
