#include "planner/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "planner/plan_job.h"
#include "tests/unit/planner/samples.h"

namespace trainyard::planner {
namespace {

std::vector<Layout> AllVariants(const Pool& pool, const JobFacts& job) {
  std::vector<Layout> layouts;
  for (const LayoutCell& cell : EnumerateCells(pool, job)) {
    layouts.insert(layouts.end(), cell.variants.begin(), cell.variants.end());
  }
  return layouts;
}

TEST(EnumerateCells, OfOneHost_HasEveryKindOfLayout) {
  std::set<std::string> names;
  for (const Layout& layout : AllVariants(PoolOfGpus({.ranks_per_host = 4}), {.global = 16, .layers = 8})) {
    names.insert(LayoutName(layout));
  }
  for (const char* name : {"single", "ddp", "zero1", "zero2", "fsdp", "fsdp, reduce every micro-batch", "tensor 4",
                           "tensor 4, sequence", "4 stages", "4 stages, interleaved", "zero1, 2 stages",
                           "ddp, tensor 2, recompute blocks", "2 stages, tensor 2, recompute selective"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
  EXPECT_EQ(names.count("hsdp of 4"), 0u) << "one host has one copy";
}

TEST(EnumerateCells, OfSeveralHosts_KeepsTensorRanksAndShardsOfHsdpWithinAHost) {
  std::set<std::string> names;
  for (const Layout& layout : AllVariants(PoolOfGpus({.hosts = 4, .ranks_per_host = 4}), {.global = 64, .layers = 8})) {
    EXPECT_LE(layout.tensor, 4u);
    names.insert(LayoutName(layout));
  }
  EXPECT_EQ(names.count("hsdp of 4"), 1u);
  EXPECT_EQ(names.count("hsdp of 2, tensor 2"), 1u);
}

TEST(EnumerateCells, EveryVariant_KeepsTheGlobalBatch_AndFillsItsRanks) {
  for (const Layout& layout :
       AllVariants(PoolOfGpus({.hosts = 3, .ranks_per_host = 4}), {.global = 48, .layers = 12})) {
    EXPECT_EQ(layout.stages * layout.tensor * layout.data_ranks(), layout.ranks);
    EXPECT_EQ(48 % (layout.micro * layout.data_ranks()), 0u) << LayoutName(layout);
  }
}

// A plan for 1,024 GPUs takes less than a second because this number, and that of the planned memories, have limits.
TEST(EnumerateCells, For1024Gpus_HasABoundedNumberOfLayouts) {
  const std::vector<Layout> layouts = AllVariants(PoolOfGpus({.hosts = 128}), {.global = 4096, .layers = 80});
  EXPECT_GT(layouts.size(), 1000u);
  EXPECT_LT(layouts.size(), 60'000u);
}

TEST(EnumerateCells, OfABatchThatCannotBeDivided_SaysWhy) {
  bool refused = false;
  for (const LayoutCell& cell : EnumerateCells(PoolOfGpus({.ranks_per_host = 8}), {.global = 4, .layers = 1})) {
    if (cell.shape.data_ranks() == 8) {
      refused = true;
      EXPECT_TRUE(cell.variants.empty());
      EXPECT_EQ(cell.refusal,
                "the global batch has 4 sequences, fewer than data ranks; with train.batch.global 8 or more, each of 8 "
                "ranks can have some");
    }
  }
  EXPECT_TRUE(refused);
}

// 64 sequences on 3 hosts of 8 ranks: all 24 ranks with unequal shares, or 16 ranks with 4 sequences each.
TEST(EnumerateCells, OfABatchThatAllRanksCannotShareEqually_HasUnequalSharesAndFewerRanks) {
  std::set<uint64_t> ranks;
  uint64_t unequal = 0;
  for (const Layout& layout : AllVariants(PoolOfGpus({.hosts = 3}), {.global = 64, .layers = 8})) {
    ranks.insert(layout.ranks);
    EXPECT_EQ(64 % layout.micro, 0u) << LayoutName(layout);
    if (RoundsOf(layout, 64) * layout.micro * layout.data_ranks() == 64) continue;
    ++unequal;
    EXPECT_EQ(layout.ranks, 24u) << LayoutName(layout);
    EXPECT_EQ(layout.chunks_per_rank, 1u) << "an interleaved pipeline needs equal numbers of micro-batches";
  }
  EXPECT_GT(unequal, 0u);
  EXPECT_EQ(ranks, (std::set<uint64_t>{24, 16, 8, 1}));
  EXPECT_EQ(BatchName({.ranks = 7, .micro = 2}, 64), "2 x 5") << "32 micro-batches on 7 ranks";
}

TEST(ApplyLayout, ReplacesTheKeysOfALayoutOnly) {
  v1::JobSpec spec = ReadGoodJob(kJobOf7b, {"resources.ranks=4", "parallel={data: zero2, tensor: 2, overlap: false}"});
  Layout layout;
  layout.ranks = 16;
  layout.stages = 2;
  layout.chunks_per_rank = 2;
  layout.data = v1::DATA_PARALLEL_ZERO1;
  layout.recompute = v1::RECOMPUTE_MODE_BLOCKS;
  layout.micro = 2;
  ApplyLayout(layout, &spec);
  EXPECT_EQ(spec.resources().ranks(), 16u);
  EXPECT_EQ(spec.train().batch().micro(), 2u);
  EXPECT_EQ(spec.parallel().data(), v1::DATA_PARALLEL_ZERO1);
  EXPECT_FALSE(spec.parallel().has_tensor());
  EXPECT_EQ(spec.parallel().pipeline().stages(), 2u);
  EXPECT_EQ(spec.parallel().pipeline().schedule(), v1::PIPELINE_SCHEDULE_INTERLEAVED);
  EXPECT_FALSE(spec.parallel().overlap()) << "a key that a layout does not decide";
}

// The layout does not suit the ranks of the job, and its micro-batch is too large; a plan replaces both.
TEST(ResetLayout, OfAJobThatIsRefused_RemovesWhatAPlanDecides) {
  const std::vector<std::string> overrides = {
      "train.batch={global: 2048, micro: 2048, length: 8192}", "train.model.preset=llama3-70b",
      "parallel={tensor: 5, pipeline: 3, overlap: false, offload: {optimizer: true}}"};
  EXPECT_NE(Read(kJobOf7b, overrides).Errors(), "");
  v1::JobSpec given;
  Problems problems;
  Positions positions;
  const v1::JobSpec spec = ReadJobFile({.text = kJobOf7b,
                                        .file_name = "job.yaml",
                                        .working_directory = "/home/ada",
                                        .overrides = overrides,
                                        .before_checks =
                                            [&given](v1::JobSpec* job, Positions* places) {
                                              given = *job;
                                              ResetLayout(job, places);
                                            }},
                                       &problems, &positions);
  EXPECT_TRUE(problems.ok()) << problems.ToStatus();
  EXPECT_EQ(spec.resources().ranks(), 1u);
  EXPECT_EQ(spec.train().batch().micro(), 1u);
  EXPECT_FALSE(spec.parallel().has_tensor());
  EXPECT_FALSE(spec.parallel().overlap()) << "stays";
  EXPECT_EQ(positions.count("parallel.tensor"), 0u);

  const LayoutKeys keys = LayoutKeysOf(given, /*offloads=*/false);
  EXPECT_THAT(keys.replaced,
              testing::UnorderedElementsAre("train.batch.micro", "parallel.tensor", "parallel.pipeline"));
  EXPECT_THAT(keys.kept, testing::UnorderedElementsAre("parallel.overlap", "parallel.offload"));
  const LayoutKeys with_offload = LayoutKeysOf(given, /*offloads=*/true);
  EXPECT_THAT(with_offload.replaced, testing::Contains("parallel.offload"));
  EXPECT_THAT(with_offload.kept, testing::ElementsAre("parallel.overlap"));
}

TEST(ResetLayout, OfACommand_ChangesNothing) {
  v1::JobSpec spec;
  spec.mutable_command();
  Positions positions;
  ResetLayout(&spec, &positions);
  EXPECT_FALSE(spec.has_train());
  EXPECT_FALSE(spec.has_resources());
}

TEST(KeysOfLayout, AreAPartOfAJobFile) {
  Layout layout;
  layout.ranks = 16;
  layout.data = v1::DATA_PARALLEL_HSDP;
  layout.shard = 8;
  layout.micro = 4;
  const std::string keys = KeysOfLayout(PoolOfGpus({.hosts = 2}), layout);
  EXPECT_THAT(keys, testing::HasSubstr("parallel:\n  data: hsdp\n  shard: 8\n"));
  EXPECT_THAT(keys, testing::HasSubstr("resources:\n  ranks: 16\n  device: cuda\n"));
  EXPECT_THAT(keys, testing::HasSubstr("batch:\n    micro: 4\n"));
}

}  // namespace
}  // namespace trainyard::planner
