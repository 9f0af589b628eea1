#include "planner/decision_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::planner {
namespace {

constexpr uint64_t kGib = uint64_t{1} << 30;

struct TreeCase {
  const char* name;
  TreeFacts facts;
  int leaf;
  const char* answer;
  const char* reason;  // a part of it
};

TEST(Decide, AtEachLeaf_GivesItsAnswerAndItsReason) {
  const TreeCase cases[] = {
      {"fits",
       {.hosts = 1, .usable_bytes = 80 * kGib, .whole_bytes = 20 * kGib, .layer_bytes = kGib},
       1,
       "DDP, or ZeRO",
       "fits on one rank (it needs 20.0 of 80.0 GiB)"},
      {"does not fit on one host",
       {.hosts = 1, .usable_bytes = 80 * kGib, .whole_bytes = 120 * kGib, .layer_bytes = kGib, .fast_inside = true},
       2,
       "pipeline, or ZeRO, or tensor",
       "on its fast links the three usually take similar times"},
      {"does not fit on one host with slow links",
       {.hosts = 1, .usable_bytes = 80 * kGib, .whole_bytes = 120 * kGib, .layer_bytes = kGib, .fast_inside = false},
       2,
       "pipeline, or ZeRO, or tensor",
       "on its slow links a pipeline is usually the fastest"},
      {"the largest layer does not fit",
       {.hosts = 1, .usable_bytes = 8 * kGib, .whole_bytes = 120 * kGib, .layer_bytes = 9 * kGib},
       3,
       "tensor, or ZeRO, with recompute and offload",
       "even the largest layer does not fit on one rank (it needs 9.0 of 8.0 GiB)"},
      {"several hosts with fast links",
       {.hosts = 4, .usable_bytes = 80 * kGib, .whole_bytes = 120 * kGib, .layer_bytes = kGib, .fast_between = true},
       4,
       "ZeRO, or pipeline + tensor + DDP",
       "the links between hosts are fast"},
      {"several hosts with slow links",
       {.hosts = 4, .usable_bytes = 80 * kGib, .whole_bytes = 120 * kGib, .layer_bytes = kGib, .fast_between = false},
       5,
       "DDP + pipeline + tensor + ZeRO-1",
       "the links between hosts are slow"},
  };
  for (const TreeCase& each : cases) {
    const TreeAnswer answer = Decide(each.facts);
    EXPECT_EQ(answer.leaf, each.leaf) << each.name;
    EXPECT_EQ(AlternativesText(answer), each.answer) << each.name;
    EXPECT_THAT(answer.reason, testing::HasSubstr(each.reason)) << each.name;
  }
}

TEST(Agrees, ALayout_MayLeaveOutPartsOfACombination) {
  TreeAnswer answer;
  answer.alternatives = {{Strategy::kZero}, {Strategy::kPipeline, Strategy::kTensor, Strategy::kDdp}};
  Layout layout;
  layout.ranks = 16;
  layout.data = v1::DATA_PARALLEL_FSDP;
  EXPECT_TRUE(Agrees(answer, layout));
  layout.data = v1::DATA_PARALLEL_DDP;
  layout.stages = 2;
  EXPECT_TRUE(Agrees(answer, layout));
  layout.data = v1::DATA_PARALLEL_ZERO1;
  EXPECT_FALSE(Agrees(answer, layout)) << "a pipeline with ZeRO is none of the alternatives";
}

TEST(Agrees, OnSlowLinks_APipelineIsExpected) {
  constexpr uint64_t kUsable = 80 * kGib, kWhole = 120 * kGib;
  const TreeAnswer one_host =
      Decide({.hosts = 1, .usable_bytes = kUsable, .whole_bytes = kWhole, .layer_bytes = kGib, .fast_inside = false});
  const TreeAnswer hosts = Decide({.hosts = 4, .usable_bytes = kUsable, .whole_bytes = kWhole, .layer_bytes = kGib});
  ASSERT_EQ(hosts.leaf, 5);
  Layout layout;
  layout.ranks = layout.tensor = 8;
  EXPECT_FALSE(Agrees(one_host, layout));
  EXPECT_FALSE(Agrees(hosts, layout));
  layout.tensor = 2;
  layout.stages = 2;
  layout.data = v1::DATA_PARALLEL_ZERO1;
  EXPECT_TRUE(Agrees(hosts, layout));
  layout.data = v1::DATA_PARALLEL_FSDP;
  EXPECT_FALSE(Agrees(hosts, layout)) << "fsdp is not ZeRO-1";
  layout.data = v1::DATA_PARALLEL_DDP;
  layout.tensor = 1;
  EXPECT_TRUE(Agrees(one_host, layout)) << "four copies of a pipeline";
}

}  // namespace
}  // namespace trainyard::planner
