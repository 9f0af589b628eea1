// Checks the memory use that strategies promise, as each rank's ledger measures it: sharded state is never held twice,
// at most three units are whole at the same time, memory is the same in every step, and recomputed activations are not
// stored.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tests/parity/cells.h"
#include "tests/parity/rank_pool.h"
#include "tests/parity/training.h"
#include "tests/parity/training_data.h"
#include "worker/diagnostics/ledger.h"
#include "worker/parallel/parallelize.h"

namespace trainyard {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kBlocks = 4;

// Few tokens and large blocks, or many tokens and small blocks.
ModelSizes ModelOf(bool large_blocks) {
  if (large_blocks) return {.layers = kBlocks, .heads = 5, .width = 640, .context = 16, .vocabulary = 64};
  return {.layers = 6, .heads = 2, .width = 64, .context = 128, .vocabulary = 64};
}

struct MemoryCase {
  bool large_blocks = true;
  Strategy strategy = Strategy::kFsdp;
  RecomputeMode recompute = RecomputeMode::kNone;
  bool offload = false;
  int64_t max_live_elements = 1000000000;
  int64_t reuse_elements = 0;
  int64_t tile_elements = 1 << 16;

  std::string ToString() const {
    return absl::StrCat(large_blocks, " ", static_cast<int>(strategy), " ", static_cast<int>(recompute), " ", offload,
                        " ", max_live_elements, " ", reuse_elements, " ", tile_elements);
  }
  static MemoryCase Parse(const std::string& text) {
    std::istringstream in(text);
    int large = 0, strategy = 0, recompute = 0, offload = 0;
    MemoryCase memory_case;
    in >> large >> strategy >> recompute >> offload >> memory_case.max_live_elements >> memory_case.reuse_elements >>
        memory_case.tile_elements;
    memory_case.large_blocks = large != 0;
    memory_case.strategy = static_cast<Strategy>(strategy);
    memory_case.recompute = static_cast<RecomputeMode>(recompute);
    memory_case.offload = offload != 0;
    return memory_case;
  }
};

using Measurements = PoolNumbers;  // bytes

int64_t Bytes(const Ledger& ledger, MemoryKind kind) { return ledger.Read()[static_cast<int>(kind)].bytes; }
int64_t Peak(const Ledger& ledger, MemoryKind kind) { return ledger.Read()[static_cast<int>(kind)].peak_bytes; }
// Returns the peak of all memory in use without the moments, which exist all the time.
int64_t PeakWithoutMoments(const Ledger& ledger) {
  return ledger.in_use().peak() - Bytes(ledger, MemoryKind::kOptimizer);
}

// Runs three steps and measures the last.
absl::StatusOr<std::string> Measure(const PoolRank& rank, const std::string& arguments) {
  const MemoryCase memory_case = MemoryCase::Parse(arguments);
  Ledger& ledger = Ledger::ForProcess();
  const int64_t before = ledger.in_use().now();
  ledger.ResetPeaks();
  ASSIGN_OR_RETURN(auto model, NewModel(ModelOf(memory_case.large_blocks), 1, at::kFloat, /*backed=*/false));
  const MeshCommunicators communicators = CommunicatorsOf(rank.groups);
  ASSIGN_OR_RETURN(
      auto strategy,
      Parallelize(*model, rank.mesh, communicators,
                  {.recompute = {.mode = memory_case.recompute},
                   .data = {.strategy = memory_case.strategy,
                            .reuse_elements = memory_case.reuse_elements,
                            .max_live_elements = memory_case.max_live_elements,
                            .offload = {.optimizer = memory_case.offload, .parameters = memory_case.offload},
                            .ledger = &ledger},
                   .update = {.tile_elements = memory_case.tile_elements}}));
  const int64_t sequences = memory_case.large_blocks ? 1 : 4;
  Measurements measurements;
  measurements["construction"] = ledger.in_use().peak() - before;
  for (int step = 1; step <= 3; ++step) {
    const auto [inputs, targets] = Samples(rank.rank, sequences, model->context());
    const uint64_t tokens = static_cast<uint64_t>(inputs.numel() * rank.mesh.world_size());
    strategy->BeginStep(tokens);
    measurements["between_steps_" + std::to_string(step)] = ledger.in_use().now();
    ledger.ResetPeaks();
    {
      ASSIGN_OR_RETURN(at::Tensor loss, strategy->Forward([&, &in = inputs, &out = targets] {
        return model->LossSum(in, out, *strategy, std::nullopt);
      }));
      measurements["forward"] = PeakWithoutMoments(ledger);
      RETURN_IF_ERROR(strategy->Backward(loss, /*last=*/true));
    }
    RETURN_IF_ERROR(strategy->FinishBackward());
    measurements["backward"] = PeakWithoutMoments(ledger);
    measurements["peak of activations"] = Peak(ledger, MemoryKind::kActivations);
    measurements["before_update"] = ledger.in_use().now();
    RETURN_IF_ERROR(strategy->Step({.lr = 1e-3, .num_tokens = tokens}).status());
  }
  for (const KindUse& use : ledger.Read()) measurements[MemoryKindName(use.kind)] = use.bytes;
  std::string text;
  for (const auto& [name, bytes] : measurements) absl::StrAppend(&text, name, "=", bytes, "\n");
  return text;
}

RankPool& Pool() {
  static RankPool pool(4);
  return pool;
}

// Returns the measurements of all ranks.
std::vector<Measurements> MeasureRanks(const MeshShape& mesh, PoolTransport transport, const MemoryCase& memory_case) {
  auto results =
      Pool().Run({.mesh = mesh, .transport = transport, .main = "measure", .arguments = memory_case.ToString()});
  EXPECT_TRUE(results.ok()) << results.status();
  std::vector<Measurements> measurements;
  for (const std::string& result : results.value_or(std::vector<std::string>{})) {
    measurements.push_back(NumbersIn(result));
  }
  return measurements;
}

// Sizes of all parameters, of a block, and of the parameters outside blocks, in fp32.
struct Sizes {
  int64_t all = 0, unit = 0, root = 0;
};
Sizes SizesOf(const ModelSizes& config) {
  auto model = *NewModel(config, 1, at::kFloat);
  Sizes sizes;
  for (const NamedTensor& parameter : model->parameters()) {
    const int64_t bytes = static_cast<int64_t>(parameter.tensor.nbytes());
    sizes.all += bytes;
    if (parameter.name.starts_with("h.0.")) sizes.unit += bytes;
    if (!parameter.name.starts_with("h.")) sizes.root += bytes;
  }
  return sizes;
}

struct World {
  const char* name;
  MeshShape mesh;
  Strategy strategy;
  PoolTransport transport = PoolTransport::kSharedMemory;
};
std::ostream& operator<<(std::ostream& out, const World& world) { return out << world.name; }

std::vector<World> ShardedWorlds() {
  std::vector<World> worlds = {{"fsdp_of_two", {.dp_shard = 2}, Strategy::kFsdp},
                               {"hsdp", {.dp_replicate = 2, .dp_shard = 2}, Strategy::kHsdp},
                               {"over_gloo", {.dp_shard = 2}, Strategy::kFsdp, PoolTransport::kGloo}};
  if (RunsAllCells()) worlds.push_back({"zero3_of_four", {.dp_shard = 4}, Strategy::kZero3});
  return worlds;
}

class ShardedMemory : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(, ShardedMemory, testing::ValuesIn(ShardedWorlds()),
                         [](const testing::TestParamInfo<World>& info) { return std::string(info.param.name); });

TEST_P(ShardedMemory, HoldsAtMostThreeWholeUnits_AndIsTheSameEveryStep) {
  const World& world = GetParam();
  const Sizes sizes = SizesOf(ModelOf(true));
  // Allowance for activations and for a parameter's gradient before the strategy consumes it; less than a unit.
  const int64_t allowance = 16 * kMiB;
  ASSERT_LT(allowance, sizes.unit);
  const int64_t sharded = sizes.all / world.mesh.dp_shard;
  // gloo needs memory of a unit's size in each direction (docs/decisions/0003-data-parallel.md), and its threads
  // release the memory of a gather with a delay.
  const int64_t gloo_buffers = world.transport == PoolTransport::kGloo ? 2 * sizes.unit : 0;
  const int64_t units = 3 * sizes.unit + gloo_buffers;

  for (const Measurements& rank : MeasureRanks(world.mesh, world.transport, {.strategy = world.strategy})) {
    EXPECT_LE(rank.at("forward"), sharded + units + sizes.root + allowance);
    EXPECT_LE(rank.at("backward"), 2 * sharded + units + 2 * sizes.root + allowance);
    EXPECT_GT(rank.at("backward"), 2 * sharded + 2 * sizes.unit)
        << "the peak is lower than the memory of parameters, gradients and two units, so the ledger misses some of it";
    EXPECT_NEAR(static_cast<double>(rank.at("between_steps_2")), static_cast<double>(rank.at("between_steps_3")),
                static_cast<double>(std::max<int64_t>(gloo_buffers, 4096)));
    // Parameters, gradients and two moments of 4 bytes each; padding is far below one percent.
    EXPECT_LE(static_cast<double>(rank.at("before_update") - gloo_buffers), 1.02 * 4 * static_cast<double>(sharded));
    EXPECT_GE(rank.at("before_update"), 4 * sharded - kMiB);
    EXPECT_EQ(rank.at("host"), 0);
    // Weights and moments of the shard, and one unit that is initialised and sent: never the whole model.
    EXPECT_LE(rank.at("construction"), 3 * sharded + sizes.unit + gloo_buffers + kMiB);
  }
}

TEST(ReplicatedMemory, IsWholeOnEachRank_ExceptForTheShardedState) {
  const int64_t all = SizesOf(ModelOf(true)).all;
  const auto near = [](int64_t expected) {
    return testing::AllOf(testing::Ge(expected - kMiB), testing::Le(expected + kMiB));
  };

  const Measurements ddp =
      MeasureRanks({.dp_replicate = 2}, PoolTransport::kSharedMemory, {.strategy = Strategy::kDdp}).at(1);
  EXPECT_THAT(ddp.at("parameters"), near(all));
  EXPECT_THAT(ddp.at("gradients"), near(all));
  EXPECT_THAT(ddp.at("optimizer"), near(2 * all));
  const Measurements zero1 =
      MeasureRanks({.dp_shard = 2}, PoolTransport::kSharedMemory, {.strategy = Strategy::kZero1}).at(1);
  EXPECT_THAT(zero1.at("gradients"), near(all));
  EXPECT_THAT(zero1.at("optimizer"), near(all));
  const Measurements zero2 =
      MeasureRanks({.dp_shard = 2}, PoolTransport::kSharedMemory, {.strategy = Strategy::kZero2}).at(1);
  EXPECT_THAT(zero2.at("parameters"), near(all));
  // Whole parameters, half of the gradients, and half of each of the two moments.
  EXPECT_THAT(zero2.at("before_update"), near(all + all / 2 + 2 * (all / 2)));
}

// Units that are soon used again stay in memory, as far as the limit on live elements allows.
TEST(ReleasePolicy, UnitsKeptForReuse_RaiseThePeak_AndALimitOnLiveElementsLowersIt) {
  const int64_t unit = SizesOf(ModelOf(true)).unit;
  auto forward = [&](const MemoryCase& memory_case) {
    return MeasureRanks({.dp_shard = 2}, PoolTransport::kSharedMemory, memory_case).at(0).at("forward");
  };
  const int64_t with_release = forward({});

  const int64_t without_release = forward({.reuse_elements = 1000000000});
  const int64_t limited = forward({.max_live_elements = 1, .reuse_elements = 1000000000});

  EXPECT_GE(without_release, with_release + unit / 2);
  // One whole unit and no prefetched one: the minimum, because a unit must be whole to run.
  EXPECT_LE(limited, with_release - unit / 2);
  const int64_t sharded = SizesOf(ModelOf(true)).all / 2;
  EXPECT_GE(limited, sharded + unit);
}

TEST(OffloadedMemory, FallsWithSmallerTiles) {
  auto buffers = [](int64_t tile_elements) {
    return MeasureRanks({.dp_shard = 2}, PoolTransport::kSharedMemory,
                        {.offload = true, .tile_elements = tile_elements})
        .at(0)
        .at("buffers");
  };
  const int64_t large = buffers(1 << 20), small = buffers(1 << 16);
  // The buffers hold master weights and two moments, of 4 bytes each, for two tiles. Half of the difference is enough.
  const int64_t difference = 2 * 3 * 4 * ((1 << 20) - (1 << 16));
  EXPECT_GE(large - small, difference / 2);
}

TEST(OffloadedMemory, KeepsOnlyGradientsAndTwoTilesOnTheDevice) {
  const int64_t sharded = SizesOf(ModelOf(true)).all / 2;

  const Measurements rank = MeasureRanks({.dp_shard = 2}, PoolTransport::kSharedMemory, {.offload = true}).at(1);

  // Weights, master weights and two moments.
  EXPECT_GE(rank.at("host"), 4 * sharded - kMiB);
  EXPECT_LE(rank.at("host"), 4 * sharded + kMiB);
  EXPECT_EQ(rank.at("parameters"), 0);
  EXPECT_EQ(rank.at("optimizer"), 0);
  // A unit's shard on its way to a gather, and master weights and moments of two tiles.
  EXPECT_LE(rank.at("buffers"), SizesOf(ModelOf(true)).unit + 2 * 3 * (4 << 16) + kMiB);
  EXPECT_LE(rank.at("before_update"), sharded + rank.at("buffers") + kMiB);
}

TEST(Activations, Recompute_AtLeastHalvesThem) {
  for (Strategy strategy : {Strategy::kDdp, Strategy::kFsdp}) {
    const MeshShape mesh = strategy == Strategy::kDdp ? MeshShape{.dp_replicate = 2} : MeshShape{.dp_shard = 2};
    auto peak = [&](RecomputeMode mode) {
      return MeasureRanks(mesh, PoolTransport::kSharedMemory,
                          {.large_blocks = false, .strategy = strategy, .recompute = mode})
          .at(0)
          .at("peak of activations");
    };

    const int64_t without_recompute = peak(RecomputeMode::kNone);

    EXPECT_LE(peak(RecomputeMode::kBlocks), without_recompute / 2) << StrategyName(strategy);
    EXPECT_LT(peak(RecomputeMode::kSelective), without_recompute * 8 / 10) << StrategyName(strategy);
  }
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  trainyard::Ledger::ForProcess();
  trainyard::RunAsPoolRankIfRequested(argc, argv, {{"measure", trainyard::Measure}});
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
