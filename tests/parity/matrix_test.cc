// The contract of worker/parallel: for every strategy, layout and deal (assignment of micro-batches to ranks), the
// results equal those of one process, the oracle.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "common/files.h"
#include "tests/parity/cells.h"
#include "tests/parity/matrix_runs.h"
#include "tests/parity/rank_pool.h"
#include "tests/parity/sleeping_stages.h"
#include "tests/parity/training.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

struct World {
  MeshShape mesh;
  PoolTransport transport = PoolTransport::kSharedMemory;
};

std::vector<TrainingOutcome> TrainWorld(const World& world, const TrainingCase& training) {
  return TrainOn(world.mesh, training, world.transport);
}

class Matrix : public testing::TestWithParam<Cell> {};
INSTANTIATE_TEST_SUITE_P(, Matrix, testing::ValuesIn(RunsAllCells() ? AllCells() : PairwiseCover(AllCells())),
                         [](const testing::TestParamInfo<Cell>& info) { return info.param.ToString(); });

TEST_P(Matrix, MatchesTheOracleInFp64) {
  TrainingCase training = GetParam().training();
  training.steps = RunsAllCells() ? 100 : GetParam().lora ? 28 : 16;  // adapters learn more slowly

  std::vector<TrainingOutcome> ranks = TrainWorld({GetParam().mesh()}, training);

  ASSERT_EQ(ranks.size(), static_cast<size_t>(GetParam().world));
  const TrainingOutcome& oracle = Oracle(training);
  const double losses = LargestDifference(ranks[0].losses, oracle.losses);
  const double norms = LargestDifference(ranks[0].norms, oracle.norms);
  const double parameters = LargestDifference({ranks[0].sum_of_parameters}, {oracle.sum_of_parameters});
  AddToTable(GetParam().ToString(), losses, norms, parameters);
  if (RunsAllCells()) PrintProgress();
  EXPECT_LE(losses, 1e-10);
  EXPECT_LE(norms, 1e-8);
  EXPECT_LE(parameters, 1e-10);
  EXPECT_LT(oracle.losses.back(), 0.9 * oracle.losses.front())
      << "the loss did not fall, so the comparison proves nothing";
  for (const TrainingOutcome& rank : ranks) {
    EXPECT_EQ(rank.parameters_hash, ranks[0].parameters_hash);
    EXPECT_EQ(rank.losses, ranks[0].losses);
  }
}

TEST(PairwiseCover, ContainsEveryPair) {
  const std::vector<Cell> all = AllCells(), cover = PairwiseCover(all);

  for (const Cell& one : OneCellPerStrategy()) {
    for (int bits = 0; bits < 8; ++bits) {
      EXPECT_TRUE(std::any_of(all.begin(), all.end(),
                              [&](const Cell& cell) {
                                return std::string(cell.name) == one.name && cell.lora == (bits % 2 == 1) &&
                                       cell.documents == (bits / 2 % 2 == 1) && cell.masked == (bits / 4 == 1);
                              }))
          << one.name << ": no cell has lora = bit 0, documents = bit 1 and masked = bit 2 of " << bits;
    }
  }
  EXPECT_EQ(MissingPairs(all, cover), 0u);
  EXPECT_LT(cover.size(), all.size() / 3);
}

class EachStrategy : public testing::TestWithParam<Cell> {};
INSTANTIATE_TEST_SUITE_P(, EachStrategy, testing::ValuesIn(OneCellPerStrategy()),
                         [](const testing::TestParamInfo<Cell>& info) { return std::string(info.param.name); });

class SelectedStrategy : public testing::TestWithParam<Cell> {};
INSTANTIATE_TEST_SUITE_P(, SelectedStrategy, testing::ValuesIn(SelectedStrategies()),
                         [](const testing::TestParamInfo<Cell>& info) { return std::string(info.param.name); });

TEST_P(SelectedStrategy, MatchesTheOracleInFp32) {
  TrainingCase training = GetParam().training();
  training.type = at::kFloat;
  training.lab_tiny = true;
  training.steps = RunsAllCells() ? 100 : 20;
  training.global = 8;
  training.micro = 1;

  std::vector<TrainingOutcome> ranks = TrainWorld({GetParam().mesh()}, training);

  ASSERT_FALSE(ranks.empty());
  const std::vector<double>&found = ranks[0].losses, &expected = Oracle(training).losses;
  EXPECT_LE(LargestDifference({found.begin(), found.begin() + 20}, {expected.begin(), expected.begin() + 20}), 1e-6);
  EXPECT_LE(LargestDifference(found, expected), 1e-5);
}

TEST_P(SelectedStrategy, LlamaInSixteenBits_IsCloseToTheOracle) {
  for (const bool lora : {false, true}) {
    TrainingCase training = GetParam().training();
    training.family = ModelFamily::kLlama;
    training.lora = lora;
    training.steps = 20;
    const std::vector<double>& expected = Oracle(training).losses;
    training.type = at::kFloat;
    training.precision = "bf16";

    std::vector<TrainingOutcome> ranks = TrainWorld({GetParam().mesh()}, training);

    ASSERT_FALSE(ranks.empty());
    EXPECT_LE(LargestDifference(ranks[0].losses, expected), 1e-2) << (lora ? "with adapters" : "");
  }
}

TEST_P(SelectedStrategy, Overlap_ChangesNoBit_WhenEachOperationWaitsForALateRank) {
  TrainingCase training = GetParam().training();
  training.type = at::kFloat;
  training.steps = RunsAllCells() ? 40 : 20;
  training.overlap = false;
  TrainingCase late = training;
  late.overlap = true;
  late.delay_ms = 100;

  ExpectSameBits(TrainWorld({GetParam().mesh()}, training), TrainWorld({GetParam().mesh()}, late));
}

TEST_P(SelectedStrategy, Recompute_ChangesNoBit) {
  TrainingCase kept = GetParam().training();
  kept.type = at::kFloat;
  kept.steps = 8;
  kept.dropout = 0.1;
  const std::vector<TrainingOutcome> expected = TrainWorld({GetParam().mesh()}, kept);

  for (const auto& [mode, every] :
       {std::pair{RecomputeMode::kBlocks, 1}, {RecomputeMode::kBlocks, 2}, {RecomputeMode::kSelective, 1}}) {
    TrainingCase recomputed = kept;
    recomputed.recompute = mode;
    recomputed.recompute_every = every;
    ExpectSameBits(TrainWorld({GetParam().mesh()}, recomputed), expected);
  }
}

TEST_P(SelectedStrategy, OffloadAndTiles_ChangeNoBit) {
  for (const char* precision : {"-", "bf16", "bf16-master"}) {
    TrainingCase plain = GetParam().training();
    plain.type = std::string(precision) == "bf16-master" ? at::kBFloat16 : at::kFloat;
    plain.precision = precision;
    plain.steps = 6;
    const std::vector<TrainingOutcome> expected = TrainWorld({GetParam().mesh()}, plain);

    for (const auto& [optimizer, parameters, tile] :
         {std::tuple{true, false, int64_t{1} << 30}, {true, true, 80}, {false, true, 80}, {false, false, 80}}) {
      TrainingCase offloaded = plain;
      offloaded.offload_optimizer = optimizer;
      offloaded.offload_parameters = parameters;
      offloaded.tile_elements = tile;
      SCOPED_TRACE(offloaded.ToString());
      ExpectSameBits(TrainWorld({GetParam().mesh()}, offloaded), expected);
    }
  }
}

// Like the two tests above, for the operations of the Llama graph and for adapters. Units with adapters have frozen and
// trained parameters, and dropout is applied to the inputs of the adapters.
TEST_P(SelectedStrategy, RecomputeAndOffloadOfALlamaAndOfAdapters_ChangeNoBit) {
  for (const auto& [family, lora] :
       {std::pair{ModelFamily::kLlama, false}, {ModelFamily::kLlama, true}, {ModelFamily::kGpt2, true}}) {
    TrainingCase plain = GetParam().training();
    plain.type = at::kFloat;
    plain.family = family;
    plain.lora = lora;
    plain.dropout = lora ? 0.1 : 0;
    plain.steps = 6;
    const std::vector<TrainingOutcome> expected = TrainWorld({GetParam().mesh()}, plain);

    for (const auto& [recompute, offload] : {std::tuple{RecomputeMode::kBlocks, false},
                                             {RecomputeMode::kSelective, false},
                                             {RecomputeMode::kSelective, true}}) {
      TrainingCase other = plain;
      other.recompute = recompute;
      other.offload_optimizer = other.offload_parameters = offload;
      SCOPED_TRACE(other.ToString());
      ExpectSameBits(TrainWorld({GetParam().mesh()}, other), expected);
    }
  }
}

// Moving a job between hosts changes no bit.
TEST_P(SelectedStrategy, OverSockets_MatchesTheOracle_AndTheBitsOfSharedMemory) {
  TrainingCase training = GetParam().training();
  training.steps = 10;
  const std::vector<TrainingOutcome> in_memory = TrainWorld({GetParam().mesh()}, training);

  for (PoolTransport transport : {PoolTransport::kGloo, PoolTransport::kTwoHosts}) {
    std::vector<TrainingOutcome> ranks = TrainWorld({GetParam().mesh(), transport}, training);
    ASSERT_FALSE(ranks.empty());
    EXPECT_LE(LargestDifference(ranks[0].losses, Oracle(training).losses), 1e-10);
    ExpectSameBits(ranks, in_memory);
  }
}

TEST_P(EachStrategy, StepRejectedByOneRank_UpdatesNothingOnAnyRank) {
  TrainingCase training = GetParam().training();
  training.steps = 8;
  TrainingCase rejected = training;
  rejected.rejected_step = 5;

  std::vector<TrainingOutcome> ranks = TrainWorld({GetParam().mesh()}, rejected);
  std::vector<TrainingOutcome> whole = TrainWorld({GetParam().mesh()}, training);

  ASSERT_FALSE(ranks.empty());
  ASSERT_FALSE(whole.empty());
  for (const TrainingOutcome& rank : ranks) {
    EXPECT_EQ(rank.parameters_hash, ranks[0].parameters_hash);
    EXPECT_FALSE(std::isfinite(rank.norms[4]));
    EXPECT_TRUE(std::isfinite(rank.norms[5]));
  }
  EXPECT_TRUE(std::equal(ranks[0].losses.begin(), ranks[0].losses.begin() + 5, whole[0].losses.begin()));
  EXPECT_NE(ranks[0].losses[5], whole[0].losses[5]);
}

// Three micro-batches for four ranks: one rank has nothing to compute but takes part in everything.
TEST_P(EachStrategy, RankWithoutAMicroBatch_AddsNothing) {
  TrainingCase training = GetParam().training();
  training.steps = 20;
  training.global = 3;
  training.micro = 1;

  std::vector<TrainingOutcome> ranks = TrainWorld({GetParam().mesh()}, training);

  ASSERT_FALSE(ranks.empty());
  EXPECT_LE(LargestDifference(ranks[0].losses, Oracle(training).losses), 1e-10);
  EXPECT_EQ(ranks[3].parameters_hash, ranks[0].parameters_hash);
}

TEST_P(EachStrategy, ReducingEachMicroBatch_MatchesTheOracle) {
  TrainingCase training = GetParam().training();
  training.steps = 20;
  training.reduce_every_micro_batch = true;

  std::vector<TrainingOutcome> ranks = TrainWorld({GetParam().mesh()}, training);

  ASSERT_FALSE(ranks.empty());
  EXPECT_LE(LargestDifference(ranks[0].losses, Oracle(training).losses), 1e-10);
}

// In 16 bits rounding errors are large, but similar for all strategies. The reference is therefore DDP with the same
// precision.
TEST_P(SelectedStrategy, InSixteenBits_IsCloseToDdpWithTheSamePrecision_AndSkipsTheSameSteps) {
  for (const char* precision : {"bf16", "fp16", "bf16-master"}) {
    TrainingCase training = GetParam().training();
    training.type = std::string(precision) == "bf16-master" ? at::kBFloat16 : at::kFloat;
    training.precision = precision;
    training.steps = RunsAllCells() ? 100 : 30;
    training.rejected_step = 7;
    static std::map<std::string, TrainingOutcome> ddp_outcomes;
    TrainingCase ddp = training;
    ddp.strategy = Strategy::kDdp;
    ddp.reshard_after_forward = true;
    if (ddp_outcomes.count(precision) == 0) {
      std::vector<TrainingOutcome> ranks = TrainWorld({{.dp_replicate = 4}}, ddp);
      ASSERT_FALSE(ranks.empty());
      ddp_outcomes[precision] = ranks[0];
    }

    std::vector<TrainingOutcome> ranks = TrainWorld({GetParam().mesh()}, training);

    ASSERT_FALSE(ranks.empty());
    const TrainingOutcome& expected = ddp_outcomes[precision];
    EXPECT_LE(LargestDifference(ranks[0].losses, expected.losses), 1e-2) << precision;
    for (size_t i = 0; i < expected.norms.size(); ++i) {
      EXPECT_EQ(std::isfinite(ranks[0].norms[i]), std::isfinite(expected.norms[i])) << precision << " step " << i + 1;
    }
    EXPECT_FALSE(std::isfinite(expected.norms[6]));
    EXPECT_LT(expected.losses.back(), 0.97 * expected.losses.front()) << precision << ": the loss did not fall";
  }
}

TEST(Zero1, ByAllReduce_HasTheBitsOfDdp) {
  TrainingCase ddp{.type = at::kFloat, .steps = 20, .global = 12, .micro = 1, .clip_norm = 0.5};
  TrainingCase zero1 = ddp;
  zero1.strategy = Strategy::kZero1;
  zero1.reduce_scatter = false;

  for (int world : {2, 3, 4}) {
    ExpectSameBits(TrainWorld({{.dp_replicate = world}}, ddp), TrainWorld({{.dp_shard = world}}, zero1));
  }
}

// Strategies on two axes: shards along one axis, replicas along the other.
TEST(TwoAxes, ShardingStrategies_MatchTheOracle) {
  for (Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kZero3}) {
    TrainingCase training{.steps = 20, .global = 12, .micro = 1, .clip_norm = 0.5, .strategy = strategy};

    std::vector<TrainingOutcome> ranks = TrainWorld({{.dp_replicate = 2, .dp_shard = 2}}, training);

    ASSERT_FALSE(ranks.empty());
    EXPECT_LE(LargestDifference(ranks[0].losses, Oracle(training).losses), 1e-10) << StrategyName(strategy);
  }
}

TEST(Prefetch, ChangesNoBit) {
  TrainingCase training{.type = at::kFloat, .steps = 10, .global = 12, .micro = 2, .strategy = Strategy::kFsdp};
  const std::vector<TrainingOutcome> one = TrainWorld({{.dp_shard = 3}}, training);
  for (int64_t elements : {int64_t{0}, int64_t{1} << 30}) {
    TrainingCase other = training;
    other.prefetch_elements = elements;
    ExpectSameBits(one, TrainWorld({{.dp_shard = 3}}, other));
  }
}

// A checkpoint holds whole tensors, so any layout can resume from what another has written.
TEST(Resume, UnderAnotherStrategyAndWorldSize_MatchesTheOracle) {
  struct Layout {
    Strategy strategy;
    MeshShape mesh;
  };
  const Layout layouts[] = {{Strategy::kDdp, {.dp_replicate = 2}},
                            {Strategy::kFsdp, {.dp_shard = 3}},
                            {Strategy::kHsdp, {.dp_replicate = 2, .dp_shard = 2}},
                            {Strategy::kZero2, {.dp_shard = 4}},
                            {Strategy::kZero1, {.dp_shard = 2}},
                            {Strategy::kDdp, {.dp_replicate = 1}}};
  TemporaryFolder folder;
  std::vector<double> losses;
  int64_t step = 0;
  for (const Layout& layout : layouts) {
    TrainingCase part{.steps = step + 3, .global = 12, .micro = 1, .clip_norm = 0.5, .strategy = layout.strategy};
    part.folder = folder.path();
    part.load_step = step;
    part.save_step = step += 3;
    std::vector<TrainingOutcome> ranks = TrainWorld({layout.mesh}, part);
    ASSERT_FALSE(ranks.empty());
    losses.insert(losses.end(), ranks[0].losses.begin(), ranks[0].losses.end());
  }
  TrainingCase whole{.steps = step, .global = 12, .clip_norm = 0.5};

  EXPECT_LE(LargestDifference(losses, Oracle(whole).losses), 1e-10);
}

// Compares all tensors of both checkpoints byte by byte, whatever pieces they are stored in.
void ExpectSameTensors(const std::string& first, const std::string& second) {
  auto a = Checkpoint::Open(first), b = Checkpoint::Open(second);
  ASSERT_TRUE(a.ok()) << a.status();
  ASSERT_TRUE(b.ok()) << b.status();
  ASSERT_EQ((*a)->manifest().tensors.size(), (*b)->manifest().tensors.size());
  for (const ManifestTensor& tensor : (*a)->manifest().tensors) {
    const size_t bytes = *CountElements(tensor.shape) * DtypeBytes(tensor.dtype);
    std::string expected(bytes, '\0'), found(bytes, '\1');
    for (const auto& [checkpoint, into] : {std::pair{a->get(), &expected}, {b->get(), &found}}) {
      absl::Status read = checkpoint->ReadTensor(tensor.role, tensor.name, tensor.dtype, tensor.shape,
                                                 absl::MakeSpan(into->data(), into->size()));
      ASSERT_TRUE(read.ok()) << read;
    }
    EXPECT_EQ(found, expected) << tensor.role << " " << tensor.name;
  }
}

// Any layout loads exactly what another has written, writes it again in its own pieces, and continues from it.
TEST(Reshard, SixLayoutsIntoSix_KeepEveryByteOfTheStateAndTheLosses) {
  struct Layout {
    const char* name;
    Strategy strategy;
    MeshShape mesh;
  };
  const Layout layouts[] = {
      {"ddp2", Strategy::kDdp, {.dp_replicate = 2}},  {"zero1x1", Strategy::kZero1, {.dp_shard = 1}},
      {"zero2x3", Strategy::kZero2, {.dp_shard = 3}}, {"zero3x4", Strategy::kZero3, {.dp_shard = 4}},
      {"fsdp2", Strategy::kFsdp, {.dp_shard = 2}},    {"hsdp2x2", Strategy::kHsdp, {.dp_replicate = 2, .dp_shard = 2}}};
  const int64_t saved = 3, steps = RunsAllCells() ? 13 : 6;
  size_t row = 0;
  for (const Layout& from : layouts) {
    TemporaryFolder folder;
    TrainingCase whole{
        .type = at::kFloat, .steps = steps, .global = 12, .micro = 1, .clip_norm = 0.5, .strategy = from.strategy};
    // Over all rows, every pair of values of these four fields occurs. Each value of the first three is written by a
    // layout that shards parameters and by one that does not.
    whole.family = row % 2 == 1 ? ModelFamily::kLlama : ModelFamily::kGpt2;
    whole.lora = row / 2 % 2 == 1;
    whole.documents = row / 2 % 2 == (row + 1) % 2;
    whole.masked = row < 3;
    ++row;
    whole.save_step = saved;
    whole.folder = folder.path();
    const std::vector<TrainingOutcome> expected = TrainWorld({from.mesh}, whole);
    ASSERT_FALSE(expected.empty());

    for (const Layout& to : layouts) {
      SCOPED_TRACE(std::string(from.name) + " to " + to.name);
      TemporaryFolder copy;
      TrainingCase rest = whole;
      rest.strategy = to.strategy;
      rest.save_step = 0;
      rest.load_step = saved;
      rest.copy_folder = copy.path();

      const std::vector<TrainingOutcome> found = TrainWorld({to.mesh}, rest);

      ASSERT_FALSE(found.empty());
      const std::vector<double> after(expected[0].losses.begin() + saved, expected[0].losses.end());
      // The layouts divide sums differently, so the sums differ in their last bits.
      EXPECT_LE(LargestDifference(found[0].losses, after), 1e-5);
      const std::string name = StepFolderName(static_cast<uint64_t>(saved));
      ExpectSameTensors(JoinPath(folder.path(), name), JoinPath(copy.path(), name));
    }
  }
}

TEST(Pool, CrashedRank_FailsOnlyItsCase) {
  auto crashed = MatrixPool().Run({.mesh = {.dp_shard = 2}, .main = "crash", .arguments = ""});
  auto after = MatrixPool().Run({.mesh = {.dp_shard = 2}, .main = "count", .arguments = ""});

  EXPECT_EQ(crashed.status().code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(*after, (std::vector<std::string>{"2", "2"}));
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  trainyard::RunAsPoolRankIfRequested(argc, argv,
                                      {{"train", trainyard::TrainMain},
                                       {"sleep", trainyard::SleepMain},
                                       {"crash",
                                        [](const trainyard::PoolRank& rank, const std::string&) {
                                          if (rank.rank == 1) raise(SIGKILL);
                                          return rank.groups.world->Barrier()->Wait().ok() ? "alive" : "alone";
                                        }},
                                       {"count", [](const trainyard::PoolRank& rank, const std::string&) {
                                          return std::to_string(rank.mesh.world_size());
                                        }}});
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
