#include "planner/step_cost.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "planner/link_cost.h"
#include "tests/unit/planner/samples.h"

namespace trainyard::planner {
namespace {

ModelWork WorkOf7b() { return WorkOf(ResolvedJob(ReadGoodJob(kJobOf7b))); }

Layout Pipeline(uint64_t stages, uint64_t micro) {
  Layout layout;
  layout.ranks = layout.stages = stages;
  layout.micro = micro;
  return layout;
}

Layout Data(uint64_t ranks, v1::DataParallel data, uint64_t micro) {
  Layout layout;
  layout.ranks = ranks;
  layout.data = data;
  layout.micro = micro;
  return layout;
}

Layout Tensor(uint64_t ranks, uint64_t micro) {
  Layout layout;
  layout.ranks = layout.tensor = ranks;
  layout.micro = micro;
  return layout;
}

TEST(WorkOf, ALlama_CountsItsParametersAndOperations) {
  const ModelWork work = WorkOf7b();
  const double parameters = work.block_parameters * 32 + work.root_parameters;
  EXPECT_NEAR(parameters, 6.74e9, 0.01e9);
  EXPECT_EQ(work.rows_per_step(), 64.0 * 2048);
  // Two operations for each parameter that a token is multiplied with (the embedding is looked up), and attention.
  const double forward = 32 * work.block_flops + work.head_flops;
  EXPECT_NEAR(forward, 2 * (parameters - 32000 * 4096) + 32 * 2 * 2048 * 4096, 1e-3 * forward);
  EXPECT_EQ(work.trained_share, 1);
}

TEST(WorkOf, AJobWithAdapters_TrainsOnlyThem) {
  const ModelWork work = WorkOf(ResolvedJob(ReadGoodJob(kJobOf7b, {"train.lora={rank: 8}"})));
  EXPECT_GT(work.trained_share, 0);
  EXPECT_LT(work.trained_share, 0.01);
}

// The documents say of one host: with fast links, pipeline, ZeRO and tensor take similar times; with slow ones, a
// pipeline is faster than the others.
TEST(CostOfStep, OnOneHost_HasTheOrderOfTheDocuments) {
  const ModelWork work = WorkOf7b();
  struct Case {
    double bytes_per_s = 0;
    double least = 0, most = 0;  // of the times of ZeRO and tensor, relative to that of the pipeline
  };
  for (const Case& each : {Case{900e9, 1 / 1.5, 1.5}, Case{10e9, 1.5, 100}}) {
    const Pool pool = PoolOfGpus({.inside = each.bytes_per_s});
    const double pipeline = CostOfStep(work, pool, Pipeline(8, 1)).seconds;
    const double zero = CostOfStep(work, pool, Data(8, v1::DATA_PARALLEL_FSDP, 8)).seconds;
    const double tensor = CostOfStep(work, pool, Tensor(8, 8)).seconds;
    for (const double other : {zero, tensor}) {
      EXPECT_GT(other / pipeline, each.least) << each.bytes_per_s;
      EXPECT_LT(other / pipeline, each.most) << each.bytes_per_s;
    }
  }
}

TEST(CostOfStep, OnSeveralHosts_PrefersZeroOnFastLinksAndAPipelineOnSlowOnes) {
  const ModelWork work = WorkOf7b();
  Layout stages = Pipeline(4, 1);  // one for each host, with ZeRO-1 within the hosts
  stages.ranks = 32;
  stages.data = v1::DATA_PARALLEL_ZERO1;
  const Layout zero = Data(32, v1::DATA_PARALLEL_FSDP, 2);
  const Pool fast = PoolOfGpus({.hosts = 4, .inside = 900e9, .between = 900e9});
  const Pool slow = PoolOfGpus({.hosts = 4, .inside = 900e9, .between = 10e9});
  EXPECT_LT(CostOfStep(work, fast, zero).seconds, CostOfStep(work, fast, stages).seconds);
  EXPECT_GT(CostOfStep(work, slow, zero).seconds, 3 * CostOfStep(work, slow, stages).seconds);
}

TEST(CostOfStep, OfAPipeline_HasTheBubbleOfItsSchedule) {
  ModelWork work = WorkOf7b();
  work.head_flops = work.head_parameters = 0;  // equal stages
  Pool pool = PoolOfGpus({.inside = 1e15});
  pool.block_overhead_s = 0;
  pool.inside.latency_s = 0;
  const auto bubble = [&](const Layout& layout) {
    const StepCost cost = CostOfStep(work, pool, layout);
    return cost.bubble / (cost.seconds - cost.update);
  };
  EXPECT_NEAR(bubble(Pipeline(8, 1)), 7.0 / 71, 1e-3) << "(p - 1) / (m + p - 1) with 64 micro-batches";
  EXPECT_NEAR(bubble(Pipeline(8, 64)), 7.0 / 8, 1e-3) << "one micro-batch: the naive pipeline";
  Layout interleaved = Pipeline(8, 1);
  interleaved.chunks_per_rank = 2;
  EXPECT_NEAR(bubble(interleaved), 3.5 / 67.5, 1e-3);
}

// Too few micro-batches leave a bubble, and too small ones read the weights more often than they compute with them.
TEST(CostOfStep, OfAPipeline_IsLeastBetweenTooFewAndTooSmallMicroBatches) {
  const ModelWork work = WorkOf(ResolvedJob(ReadGoodJob(kJobOf7b, {"train.batch.length=64"})));
  const Pool pool = PoolOfGpus({});
  const auto seconds = [&](uint64_t micro) { return CostOfStep(work, pool, Pipeline(4, micro)).seconds; };
  double least = seconds(1);
  for (const uint64_t micro : {2, 4, 8, 16, 32, 64}) least = std::min(least, seconds(micro));
  EXPECT_LT(least, seconds(1));
  EXPECT_LT(least, seconds(64));
}

TEST(CostOfStep, OfRecompute_IsOneForwardMore) {
  const ModelWork work = WorkOf7b();
  const Pool pool = PoolOfGpus({});
  Layout layout = Data(8, v1::DATA_PARALLEL_DDP, 2);
  const StepCost stored = CostOfStep(work, pool, layout);
  layout.recompute = v1::RECOMPUTE_MODE_BLOCKS;
  const StepCost recomputed = CostOfStep(work, pool, layout);
  EXPECT_NEAR(recomputed.recompute / stored.compute, 1.0 / 3, 0.02);
}

// Adapters are a thousandth of the model. The frozen rest is the same on all ranks and never gathered.
TEST(CostOfStep, OfZero1WithAdapters_CommunicatesTheAdaptersOnly) {
  const ModelWork work = WorkOf(ResolvedJob(ReadGoodJob(kJobOf7b, {"train.lora={rank: 8}"})));
  const Pool pool = PoolOfGpus({.hosts = 2, .between = 10e9});
  const StepCost cost = CostOfStep(work, pool, Data(16, v1::DATA_PARALLEL_ZERO1, 2));
  EXPECT_LT(cost.communication + cost.hidden, 0.02) << "the whole model would take 0.7 s";
}

// On slow links, the exchanges of tensor ranks take most of a step. They use the same links as the gathers.
TEST(CostOfStep, OfShardsWithTensorRanks_HidesGathersBehindComputationOnly) {
  const ModelWork work = WorkOf7b();
  const Pool pool = PoolOfGpus({.inside = 1e9});
  Layout layout = Data(8, v1::DATA_PARALLEL_FSDP, 16);
  layout.tensor = 2;
  const StepCost cost = CostOfStep(work, pool, layout);
  EXPECT_GT(cost.hidden, 0);
  EXPECT_LE(cost.hidden, 1.001 * (cost.compute + cost.recompute));
}

TEST(CostOfStep, WithoutOverlap_HidesNothing) {
  ModelWork work = WorkOf7b();
  const Pool pool = PoolOfGpus({});
  const Layout layout = Data(8, v1::DATA_PARALLEL_DDP, 8);
  EXPECT_GT(CostOfStep(work, pool, layout).hidden, 0);
  const double overlapped = CostOfStep(work, pool, layout).seconds;
  work.overlaps = false;
  EXPECT_EQ(CostOfStep(work, pool, layout).hidden, 0);
  EXPECT_GT(CostOfStep(work, pool, layout).seconds, overlapped);
}

// bench/results/gpu-h200.md has the measurement: 34.1 ms for a step of 16 sequences of 1,024 tokens.
TEST(CostOfStep, OfGpt2OnOneH200_IsNearTheMeasuredStep) {
  const ModelWork work =
      WorkOf(ResolvedJob(ReadGoodJob(kJobOf7b, {"train.model.preset=gpt2", "train.batch={global: 16, length: 1024}"})));
  Pool pool = PoolOfGpus({.ranks_per_host = 1});
  pool.memory_bytes_per_s = 4.8e12;
  Layout layout;
  layout.micro = 16;
  EXPECT_NEAR(CostOfStep(work, pool, layout).seconds, 34.1e-3, 0.15 * 34.1e-3);
}

TEST(GroupOf, RanksWithAStride_AreOnSeveralHosts) {
  const Pool pool = PoolOfGpus({.hosts = 4});
  const RankGroup data = GroupOf(pool, 32, 1), behind_tensor = GroupOf(pool, 8, 4), copies = GroupOf(pool, 4, 8);
  EXPECT_EQ(data.local, 8);
  EXPECT_EQ(data.hosts, 4);
  EXPECT_EQ(data.sharers, 1);
  EXPECT_EQ(behind_tensor.local, 2);
  EXPECT_EQ(behind_tensor.hosts, 4);
  EXPECT_EQ(behind_tensor.sharers, 4);
  EXPECT_EQ(copies.local, 1);
  EXPECT_EQ(copies.hosts, 4);
  EXPECT_EQ(copies.sharers, 8);
}

TEST(AllReduceSeconds, OfARing_IsTwiceItsShareOfTheBytes) {
  Pool pool = PoolOfGpus({.ranks_per_host = 4, .inside = 100});
  pool.inside.latency_s = 1;
  EXPECT_DOUBLE_EQ(AllReduceSeconds(pool, GroupOf(pool, 4, 1), 400), 2 * (3 + 3));
  EXPECT_EQ(AllReduceSeconds(pool, GroupOf(pool, 1, 1), 400), 0);
}

}  // namespace
}  // namespace trainyard::planner
