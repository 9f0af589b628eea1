// The contract of tensor and pipeline parallelism: for every layout, schedule and strategy, the results equal those of
// one process; and where the order of sums is equal too, no bit differs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <vector>

#include "tests/parity/cells.h"
#include "tests/parity/matrix_runs.h"
#include "tests/parity/model_parallel_cells.h"
#include "tests/parity/training.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

// Losses are compared strictly up to this step. Later, the rounding differences between two orders of sums grow
// exponentially: in the cell with the fewest samples per step, from 7e-16 after step 60 to 3e-13 after step 90 and
// 1e-10 after step 100. They grow equally fast in one layout that only reverses the order of its micro-batches.
constexpr ptrdiff_t kSteadySteps = 90;

class ModelParallelMatrix : public testing::TestWithParam<ModelParallelCell> {};
INSTANTIATE_TEST_SUITE_P(, ModelParallelMatrix,
                         testing::ValuesIn(RunsAllCells() ? PairwiseCover(AllModelParallelCells())
                                                          : ValueCover(AllModelParallelCells())),
                         [](const testing::TestParamInfo<ModelParallelCell>& info) { return info.param.ToString(); });

TEST_P(ModelParallelMatrix, MatchesTheOracle) {
  const bool is_fp64 = GetParam().type == at::kDouble;
  TrainingCase training = GetParam().training();
  training.steps = is_fp64 && RunsAllCells() ? 100 : 20;

  // Eight ranks take a long time for 100 steps on a machine with few cores.
  std::vector<TrainingOutcome> ranks = TrainOn(GetParam().mesh(), training, PoolTransport::kSharedMemory,
                                               RunsAllCells() ? absl::Minutes(20) : absl::Minutes(2));

  ASSERT_EQ(ranks.size(), static_cast<size_t>(GetParam().world()));
  const TrainingOutcome& oracle = Oracle(training);
  const double losses = LargestDifference(ranks[0].losses, oracle.losses);
  const double norms = LargestDifference(ranks[0].norms, oracle.norms);
  const double parameters = LargestDifference({ranks[0].sum_of_parameters}, {oracle.sum_of_parameters});
  AddToTable(GetParam().ToString(), losses, norms, parameters);
  if (RunsAllCells()) PrintProgress();
  // Sums in fp32 are rounded to 6e-8 of their size, and are computed in another order than the oracle's. Norms differ
  // more than losses, because their gradients are sums of terms that cancel each other.
  const auto first = [](const std::vector<double>& all) {
    return std::vector<double>(all.begin(), all.begin() + std::min<ptrdiff_t>(std::ssize(all), kSteadySteps));
  };
  EXPECT_LE(LargestDifference(first(ranks[0].losses), first(oracle.losses)), is_fp64 ? 1e-10 : 1e-6);
  EXPECT_LE(losses, is_fp64 ? 1e-9 : 1e-6);
  EXPECT_LE(norms, is_fp64 ? 1e-8 : 1e-4);
  EXPECT_LE(parameters, is_fp64 ? 1e-10 : 1e-6);
  EXPECT_LT(oracle.losses.back(), 0.95 * oracle.losses.front())
      << "the loss did not fall, so the comparison proves nothing";
  EXPECT_GT(*std::max_element(oracle.norms.begin(), oracle.norms.end()), training.clip_norm)
      << "no step was clipped, so a wrong norm would have no effect";
  for (const TrainingOutcome& rank : ranks) {
    EXPECT_EQ(rank.losses, ranks[0].losses);
    EXPECT_EQ(rank.norms, ranks[0].norms);
  }
  BoxesOf(ranks);  // expects that copies are equal
}

TEST(ModelParallelCells, PairsContainEveryScheduleWithEveryStrategy_AndValuesEverySchedule) {
  const std::vector<ModelParallelCell> all = AllModelParallelCells(), pairs = PairwiseCover(all),
                                       values = ValueCover(all);

  EXPECT_GT(all.size(), 1000u);
  EXPECT_LT(pairs.size(), 100u);
  EXPECT_LT(values.size(), 10u);
  for (ScheduleKind schedule : AllScheduleKinds()) {
    for (Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3, Strategy::kFsdp}) {
      EXPECT_TRUE(std::any_of(
          pairs.begin(), pairs.end(),
          [&](const ModelParallelCell& cell) { return cell.schedule == schedule && cell.strategy == strategy; }))
          << ScheduleName(schedule) << " " << StrategyName(strategy);
    }
    EXPECT_TRUE(std::any_of(values.begin(), values.end(),
                            [&](const ModelParallelCell& cell) { return cell.schedule == schedule; }));
  }
}

// The following tests compare runs that must have the same bits. Clipping is inactive in them: the norm is a sum over
// all ranks, and the layout changes the order of that sum.

TrainingCase UnclippedCase(ModelFamily family, ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward) {
  return {.type = at::kFloat,
          .steps = 5,
          .global = 8,
          .micro = 1,
          .family = family,
          .blocks = 5,
          .schedule = schedule,
          .chunks = schedule == ScheduleKind::kInterleaved ? 2 : 1};
}

TEST(Pipeline, OfAnUntiedModel_HasTheBitsOfOneStage) {
  for (int tensor : {1, 2}) {
    const std::vector<TrainingOutcome> one_stage = TrainOn({.tp = tensor}, UnclippedCase(ModelFamily::kLlama));
    for (ScheduleKind schedule : AllScheduleKinds()) {
      if (schedule == ScheduleKind::kGpipe) continue;  // it runs backward in reverse order
      SCOPED_TRACE(std::string(ScheduleName(schedule)));
      ExpectSameBitsOfBoxes(TrainOn({.pp = 2, .tp = tensor}, UnclippedCase(ModelFamily::kLlama, schedule)), one_stage);
    }
  }
}

TEST(Pipeline, ByGpipe_HasTheBitsOfOneStageWithReversedMicroBatches) {
  TrainingCase reversed = UnclippedCase(ModelFamily::kLlama);
  reversed.reverse_micro_batches = true;

  ExpectSameBitsOfBoxes(TrainOn({.pp = 4}, UnclippedCase(ModelFamily::kLlama, ScheduleKind::kGpipe)),
                        TrainOn({}, reversed));
}

TEST(Pipeline, ByZeroBubble_HasTheBitsOf1f1b) {
  for (ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kQwen2}) {
    ExpectSameBitsOfBoxes(TrainOn({.pp = 2, .tp = 2}, UnclippedCase(family, ScheduleKind::kZeroBubble)),
                          TrainOn({.pp = 2, .tp = 2}, UnclippedCase(family)));
  }
}

TEST(Pipeline, Zero1ByAllReduce_HasTheBitsOfDdp_AlsoWithTensorRanks) {
  TrainingCase ddp = UnclippedCase(ModelFamily::kGpt2);
  TrainingCase zero1 = ddp;
  zero1.strategy = Strategy::kZero1;
  zero1.reduce_scatter = false;

  ExpectSameBitsOfBoxes(TrainOn({.pp = 2, .dp_shard = 2, .tp = 2}, zero1),
                        TrainOn({.pp = 2, .dp_replicate = 2, .tp = 2}, ddp));
}

TEST(Pipeline, LateLinksAndLateRanks_ChangeNoBit) {
  for (ScheduleKind schedule : {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kInterleaved}) {
    const TrainingCase training = UnclippedCase(ModelFamily::kGpt2, schedule);
    TrainingCase late = training;
    late.link_delay_us = 3000;
    late.delay_ms = 30;

    ExpectSameBitsOfBoxes(TrainOn({.pp = 2, .tp = 2}, late), TrainOn({.pp = 2, .tp = 2}, training));
  }
}

TEST(Pipeline, OverSockets_HasTheBitsOfSharedMemory) {
  for (bool sequence : {false, true}) {
    TrainingCase training = UnclippedCase(ModelFamily::kGpt2);
    training.sequence = sequence;
    const std::vector<TrainingOutcome> in_memory = TrainOn({.pp = 2, .tp = 2}, training);

    for (PoolTransport transport : {PoolTransport::kGloo, PoolTransport::kTwoHosts}) {
      ExpectSameBitsOfBoxes(TrainOn({.pp = 2, .tp = 2}, training, transport), in_memory);
    }
  }
}

// A checkpoint does not depend on whether tensor ranks divide the sequence.
TEST(SequenceParallel, RunsWithAndWithoutIt_ResumeFromEachOther) {
  TrainingCase whole = UnclippedCase(ModelFamily::kGpt2);
  whole.type = at::kDouble;
  whole.clip_norm = 0.5;
  whole.dropout = 0.1;
  whole.steps = 8;
  const TrainingOutcome& oracle = Oracle(whole);
  for (bool sequence : {false, true}) {
    TemporaryFolder folder;
    TrainingCase first = whole;
    first.sequence = sequence;
    first.steps = first.save_step = 3;
    first.folder = folder.path();
    TrainingCase rest = whole;
    rest.sequence = !sequence;
    rest.load_step = 3;
    rest.folder = folder.path();

    const std::vector<TrainingOutcome> saved = TrainOn({.pp = 2, .tp = 2}, first);
    const std::vector<TrainingOutcome> resumed = TrainOn({.dp_replicate = 2, .tp = 2}, rest);

    ASSERT_EQ(saved.size(), 4u);
    ASSERT_EQ(resumed.size(), 4u);
    EXPECT_LE(LargestDifference(saved[0].losses, {oracle.losses.begin(), oracle.losses.begin() + 3}), 1e-10);
    EXPECT_LE(LargestDifference(resumed[0].losses, {oracle.losses.begin() + 3, oracle.losses.end()}), 1e-10);
  }
}

TEST(Pipeline, RecomputeAndOverlap_ChangeNoBit) {
  TrainingCase training = UnclippedCase(ModelFamily::kGpt2);
  training.dropout = 0.1;
  const std::vector<TrainingOutcome> expected = TrainOn({.pp = 2, .tp = 2}, training);

  for (RecomputeMode mode : {RecomputeMode::kBlocks, RecomputeMode::kSelective}) {
    TrainingCase other = training;
    other.recompute = mode;
    other.overlap = false;
    ExpectSameBitsOfBoxes(TrainOn({.pp = 2, .tp = 2}, other), expected);
  }
}

TEST(Pipeline, StepRejectedByItsLastStage_UpdatesNothingOnAnyRank) {
  TrainingCase training = UnclippedCase(ModelFamily::kGpt2);
  training.rejected_step = 3;

  const std::vector<TrainingOutcome> ranks = TrainOn({.pp = 2, .tp = 2}, training);

  ASSERT_FALSE(ranks.empty());
  for (const TrainingOutcome& rank : ranks) {
    EXPECT_FALSE(std::isfinite(rank.norms[2]));
    EXPECT_TRUE(std::isfinite(rank.norms[3]));
  }
  BoxesOf(ranks);
}

// Only the last stage scales losses, but every stage must detect that its gradients overflow. The scale doubles until
// the gradients overflow.
TEST(Pipeline, InFp16_HasTheBitsOfOneStage_AndAllStagesSkipTheSameSteps) {
  TrainingCase training = UnclippedCase(ModelFamily::kLlama);
  training.precision = "fp16";
  training.scale_window = 1;
  training.steps = 16;
  training.rejected_step = 2;
  const std::vector<TrainingOutcome> one_stage = TrainOn({}, training);

  const std::vector<TrainingOutcome> ranks = TrainOn({.pp = 2}, training);

  ExpectSameBitsOfBoxes(ranks, one_stage);
  ASSERT_EQ(ranks.size(), 2u);
  size_t skipped = 0;
  for (size_t step = 0; step < one_stage[0].norms.size(); ++step) {
    const bool skips = std::isnan(one_stage[0].norms[step]);
    skipped += skips;
    for (const TrainingOutcome& rank : ranks) EXPECT_EQ(std::isnan(rank.norms[step]), skips) << "step " << step + 1;
  }
  EXPECT_GT(skipped, 1u) << "no gradient overflowed";
  EXPECT_LT(skipped, 10u);
}

// Differences between copies would grow from step to step.
TEST(Copies, OfTiedEmbeddingsAndTensorReplicas_StayEqual) {
  TrainingCase training{
      .type = at::kFloat, .steps = RunsAllCells() ? 2000 : 60, .global = 4, .micro = 1, .clip_norm = 0.5, .blocks = 2};
  for (ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kQwen2}) {
    training.family = family;
    training.sequence = family == ModelFamily::kQwen2;
    const std::vector<TrainingOutcome> ranks =
        TrainOn({.pp = 2, .tp = 2}, training, PoolTransport::kSharedMemory, absl::Minutes(20));

    ASSERT_EQ(ranks.size(), 4u);
    EXPECT_LT(ranks[0].losses.back(), 0.9 * ranks[0].losses.front());
    const size_t boxes = BoxesOf(ranks).size();
    size_t held = 0;
    for (const TrainingOutcome& rank : ranks) held += rank.boxes.size();
    EXPECT_LT(boxes, held) << "there are no copies, so the comparison proves nothing";
  }
}

}  // namespace
}  // namespace trainyard
