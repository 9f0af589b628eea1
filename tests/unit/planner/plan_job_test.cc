#include "planner/plan_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "spec/job_layout.h"
#include "tests/unit/planner/samples.h"

namespace trainyard::planner {
namespace {

using testing::HasSubstr;

JobPlan Plan(const v1::JobSpec& spec, const Pool& pool, uint64_t top = 5) {
  absl::StatusOr<JobPlan> plan = PlanJob(spec, {pool}, {.top = top});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : JobPlan();
}

v1::JobSpec JobOf70b() {
  return ReadGoodJob(kJobOf7b, {"train.model.preset=llama3-70b", "train.batch={global: 2048, micro: 1, length: 2048}"});
}

std::string Reasons(const JobPlan& plan) {
  std::string text;
  for (const Rejection& rejection : plan.rejected) absl::StrAppend(&text, rejection.count, " ", rejection.reason, "\n");
  return text;
}

TEST(PlanJob, OfASmallModel_SaysThatItFits) {
  const JobPlan plan =
      Plan(ReadGoodJob(kJobOf7b, {"train.model.preset=gpt2", "train.batch.length=1024"}), PoolOfGpus({}));
  ASSERT_FALSE(plan.layouts.empty());
  EXPECT_EQ(plan.tree.leaf, 1);
  EXPECT_TRUE(plan.tree_agrees);
  EXPECT_THAT(plan.layouts[0].reason, HasSubstr("the model fits on one rank, which needs "));
  EXPECT_EQ(plan.layouts[0].layout.ranks, 8u);
  EXPECT_EQ(plan.layouts[0].layout.recompute, v1::RECOMPUTE_MODE_NONE) << "there is nothing to save";
}

TEST(PlanJob, OfAModelThatDoesNotFit_ShardsIt_AndSaysWhatItNeeds) {
  const JobPlan plan = Plan(ReadGoodJob(kJobOf7b), PoolOfGpus({}));
  ASSERT_FALSE(plan.layouts.empty());
  EXPECT_EQ(plan.tree.leaf, 2);
  EXPECT_THAT(plan.layouts[0].reason, HasSubstr("does not fit without sharding: needs "));
  EXPECT_THAT(plan.layouts[0].reason, HasSubstr(" of 69.8 GiB; here a rank needs "));
  const Layout& best = plan.layouts[0].layout;
  EXPECT_TRUE(best.data != v1::DATA_PARALLEL_DDP || best.stages > 1 || best.tensor > 1) << LayoutName(best);
  EXPECT_THAT(Reasons(plan), HasSubstr("need more memory than their ranks have"));
}

// What is printed can be submitted: the whole check of `trainctl validate` accepts it, and its plan of the memory is
// the one that is printed.
TEST(PlanJob, EveryLayout_IsAValidJobThatFits) {
  struct Case {
    v1::JobSpec spec;
    Pool pool;
  };
  const Case cases[] = {
      {ReadGoodJob(kJobOf7b), PoolOfGpus({})},
      {ReadGoodJob(kJobOf7b), PoolOfGpus({.hosts = 4, .between = 10e9})},
      {ReadGoodJob(kJobOf7b), PoolOfGpus({.ranks_per_host = 7})},
      {ReadGoodJob(kJobOf7b, {"train.model.preset=gpt2", "train.batch.length=1024"}), PoolOfGpus({.hosts = 3})},
      {ReadGoodJob(kJobOf7b, {"train.lora={rank: 8}"}), PoolOfGpus({.hosts = 2})},
      {JobOf70b(), PoolOfGpus({.hosts = 32})},
  };
  for (const Case& each : cases) {
    const JobPlan plan = Plan(each.spec, each.pool, 20);
    EXPECT_FALSE(plan.layouts.empty());
    for (const PlannedLayout& planned : plan.layouts) {
      const std::string name = LayoutName(planned.layout);
      const auto prepared =
          PrepareJob(WithLayout(each.spec, each.pool, planned.layout), {.job_id = "id", .default_run_root = "/runs"});
      ASSERT_TRUE(prepared.ok()) << name << ": " << prepared.status();
      EXPECT_EQ(PlanMemory(prepared->spec), planned.memory) << name;
      EXPECT_EQ(PlanPipeline(prepared->spec).bubble, planned.bubble) << name;
      EXPECT_LE(planned.needed_bytes, each.pool.usable_bytes()) << name;
      EXPECT_LE(planned.layout.tensor, each.pool.ranks_per_host) << name;
      EXPECT_FALSE(planned.reason.empty());
    }
  }
}

TEST(PlanJob, OnSlowLinksBetweenHosts_UsesAPipeline_AndOnFastOnesZero) {
  const v1::JobSpec spec = ReadGoodJob(kJobOf7b);
  const JobPlan slow = Plan(spec, PoolOfGpus({.hosts = 4, .between = 10e9}));
  ASSERT_FALSE(slow.layouts.empty());
  EXPECT_GT(slow.layouts[0].layout.stages, 1u) << LayoutName(slow.layouts[0].layout);
  EXPECT_EQ(slow.tree.leaf, 5);
  EXPECT_TRUE(slow.tree_agrees);

  const JobPlan fast = Plan(spec, PoolOfGpus({.hosts = 4, .inside = 900e9, .between = 900e9}));
  ASSERT_FALSE(fast.layouts.empty());
  EXPECT_EQ(fast.layouts[0].layout.stages, 1u) << LayoutName(fast.layouts[0].layout);
  EXPECT_NE(fast.layouts[0].layout.data, v1::DATA_PARALLEL_DDP);
  EXPECT_EQ(fast.tree.leaf, 4);
  EXPECT_TRUE(fast.tree_agrees);
}

// A plan stores nothing, so a change of the machines changes it.
TEST(PlanJob, AfterAChangeOfTheMachines_IsAnotherPlan) {
  const v1::JobSpec spec = ReadGoodJob(kJobOf7b);
  EXPECT_EQ(Plan(spec, PoolOfGpus({})).tree.leaf, 2);
  EXPECT_EQ(Plan(spec, PoolOfGpus({.memory_bytes = 200'000'000'000})).tree.leaf, 1);
}

// The time of a plan is proportional to these numbers, each of which takes about a millisecond or a microsecond.
TEST(PlanJob, For1024Gpus_PlansTheMemoryOfFewLayouts) {
  const JobPlan plan = Plan(JobOf70b(), PoolOfGpus({.hosts = 128}));
  ASSERT_EQ(plan.layouts.size(), 5u);
  EXPECT_FALSE(plan.stopped_early);
  EXPECT_LE(plan.memory_plans, kMemoryPlansMax);
  EXPECT_LT(plan.candidates, 60'000u);
  std::set<std::string> kinds;
  for (const PlannedLayout& planned : plan.layouts) {
    kinds.insert(absl::StrCat(planned.layout.ranks, " ", planned.layout.stages, " ", planned.layout.tensor, " ",
                              static_cast<int>(planned.layout.data)));
  }
  EXPECT_EQ(kinds.size(), 5u) << "layouts differ in more than the size of micro-batches";
}

// 64 sequences on 7 GPUs: unequal shares are better than a single pipeline, or than 4 GPUs.
TEST(PlanJob, OfABatchThatAllRanksCannotShareEqually_SaysForHowLongRanksAreIdle) {
  const JobPlan plan = Plan(ReadGoodJob(kJobOf7b), PoolOfGpus({.ranks_per_host = 7}), 20);
  const auto unequal = std::find_if(plan.layouts.begin(), plan.layouts.end(),
                                    [](const PlannedLayout& planned) { return planned.layout.data_ranks() == 7; });
  ASSERT_NE(unequal, plan.layouts.end()) << Reasons(plan);
  EXPECT_THAT(unequal->reason,
              HasSubstr("the batch cannot be divided equally, so that the 7 data ranks are idle for "));
  EXPECT_THAT(unequal->reason, HasSubstr("; train.batch.global 63 or 70 can be"));
}

TEST(PlanJob, WithFewSequences_ListsNoPipelineWithFewerMicroBatchesThanStages) {
  const JobPlan plan = Plan(ReadGoodJob(kJobOf7b, {"train.batch.global=4"}), PoolOfGpus({.inside = 10e9}), 100);
  ASSERT_FALSE(plan.layouts.empty());
  for (const PlannedLayout& planned : plan.layouts) {
    EXPECT_GE(RoundsOf(planned.layout, 4), planned.layout.stages) << LayoutName(planned.layout);
  }
  EXPECT_THAT(Reasons(plan), HasSubstr("have fewer micro-batches than stages, and others fit"));
}

TEST(PlanJob, IfOnlyPipelinesWithFewerMicroBatchesThanStagesFit_ListsThemAll) {
  const v1::JobSpec spec = ReadGoodJob(kJobOf7b, {"train.batch={global: 1, length: 512}", "train.lora={rank: 8}"});
  const JobPlan plan = Plan(spec, PoolOfGpus({.memory_bytes = 24'000'000'000}));
  EXPECT_EQ(plan.layouts.size(), 2u) << Reasons(plan);  // 4 and 8 stages; adapters have no tensor ranks
  EXPECT_THAT(Reasons(plan), testing::Not(HasSubstr("and others fit")));
}

// The order of the listed layouts: twice the ranks must save a tenth of the time.
TEST(PlanJob, IfMoreRanksGainLittle_UsesFewer) {
  const v1::JobSpec spec = ReadGoodJob(kJobOf7b, {"train.model.preset=gpt2", "train.batch={global: 64, length: 1024}"});
  const JobPlan slow = Plan(spec, PoolOfGpus({.inside = 1e9}), 20);
  const JobPlan fast = Plan(spec, PoolOfGpus({}), 20);
  ASSERT_FALSE(slow.layouts.empty());
  ASSERT_FALSE(fast.layouts.empty());
  EXPECT_EQ(fast.layouts[0].layout.ranks, 8u);
  for (const JobPlan* plan : {&slow, &fast}) {
    const PlannedLayout& best = plan->layouts[0];
    for (const PlannedLayout& other : plan->layouts) {
      // Features count at most 10 %.
      const double doublings =
          std::log2(static_cast<double>(other.layout.ranks) / static_cast<double>(best.layout.ranks));
      EXPECT_LT(best.cost.seconds, 1.1 * other.cost.seconds * std::pow(1.1, doublings)) << LayoutName(other.layout);
    }
  }
}

TEST(PlanJob, OnOneGpuThatIsTooSmall_OffloadsTheOptimizer) {
  const JobPlan plan = Plan(ReadGoodJob(kJobOf7b), PoolOfGpus({.ranks_per_host = 1}));
  ASSERT_FALSE(plan.layouts.empty());
  EXPECT_TRUE(plan.layouts[0].layout.offload);
  EXPECT_THAT(plan.layouts[0].reason, HasSubstr("offload keeps the optimizer state in host memory"));
  EXPECT_THAT(plan.layouts[0].reason, HasSubstr(" on each host, whose memory is assumed to be unlimited), because "));
  EXPECT_GT(plan.layouts[0].memory.host, 0u);
}

// Two ranks of ddp would offload 162 GB to a host with 100 GB. One rank, which needs as much of its device, fits.
TEST(PlanJob, IfTheHostIsTooSmallForTwoRanks_PlansOne) {
  Pool pool = PoolOfGpus({.ranks_per_host = 2, .memory_bytes = 60'000'000'000});
  pool.host_memory_bytes = 100'000'000'000;
  const JobPlan plan = Plan(ReadGoodJob(kJobOf7b), pool, 20);
  EXPECT_TRUE(std::any_of(plan.layouts.begin(), plan.layouts.end(), [](const PlannedLayout& planned) {
    return planned.layout.ranks == 1;
  })) << Reasons(plan);
  for (const PlannedLayout& planned : plan.layouts) {
    EXPECT_LE(planned.layout.ranks * planned.memory.host, pool.host_memory_bytes) << LayoutName(planned.layout);
  }
}

TEST(PlanJob, IfTheHostIsTooSmall_NearestIsByTheMemoryThatIsTooSmall) {
  Pool pool = PoolOfGpus({.ranks_per_host = 1, .memory_bytes = 60'000'000'000});
  pool.host_memory_bytes = 16'000'000'000;
  const JobPlan plan = Plan(ReadGoodJob(kJobOf7b), pool);
  EXPECT_TRUE(plan.layouts.empty());
  ASSERT_EQ(plan.nearest.size(), 1u);
  EXPECT_GT(plan.nearest[0].share, 1);
}

// The state that the job offloads must fit into the memory of the hosts, too.
TEST(PlanJob, IfTheHostIsTooSmall_EnoughRanksFitIntoTheMemoryOfTheirHosts) {
  const v1::JobSpec spec = ReadGoodJob(kJobOf7b, {"parallel.offload.optimizer=true"});
  Pool pool = PoolOfGpus({});
  pool.host_memory_bytes = 20'000'000'000;
  const JobPlan plan = Plan(spec, pool);
  EXPECT_TRUE(plan.layouts.empty());
  EXPECT_EQ(plan.enough_ranks, 64u) << "8 hosts; on 4, each would need 20.2 GB";
  pool.hosts = 8;
  EXPECT_FALSE(Plan(spec, pool).layouts.empty());
}

// A stage with a single block stores the input of the block, not its activations, for each micro-batch in flight.
TEST(PlanJob, WithABlockForEachStage_FitsByRecompute) {
  const v1::JobSpec spec = ReadGoodJob(kJobOf7b, {"train.model.layers=8", "train.batch.global=8"});
  const JobPlan plan = Plan(spec, PoolOfGpus({.memory_bytes = 8'450'000'000}), 40);
  EXPECT_FALSE(plan.stopped_early);
  EXPECT_TRUE(std::any_of(plan.layouts.begin(), plan.layouts.end(), [](const PlannedLayout& planned) {
    return planned.layout.stages == 8;
  })) << Reasons(plan);
}

TEST(PlanJob, IfNothingFits_NamesWhatComesNearest) {
  const JobPlan plan = Plan(JobOf70b(), PoolOfGpus({.ranks_per_host = 1}));
  EXPECT_TRUE(plan.layouts.empty());
  ASSERT_EQ(plan.nearest.size(), 1u);
  EXPECT_GT(plan.nearest[0].needed_bytes, 75'000'000'000u);
  EXPECT_THAT(Reasons(plan), HasSubstr("need more memory than their ranks have"));
  ASSERT_GT(plan.enough_ranks, 1u);
  EXPECT_FALSE(Plan(JobOf70b(), PoolOfGpus({.hosts = plan.enough_ranks, .ranks_per_host = 1})).layouts.empty());
}

TEST(PlanJob, OfHeadsThatCannotBeDivided_GivesTheReasonOfTheRules) {
  const JobPlan plan =
      Plan(ReadGoodJob(kJobOf7b, {"train.model.preset=gpt2", "train.batch.length=1024"}), PoolOfGpus({}));
  EXPECT_THAT(Reasons(plan), HasSubstr("are refused by the rules of job files: parallel.tensor: is 8, which does not "
                                       "divide the model's 12 attention heads\n"));
}

TEST(PlanJob, ReplacesTheLayoutOfTheJob_AndKeepsItsOtherKeys) {
  const JobPlan plan = Plan(ReadGoodJob(kJobOf7b), PoolOfGpus({}));
  const JobPlan same = Plan(ReadGoodJob(kJobOf7b, {"resources.ranks=2", "parallel.data=zero1"}), PoolOfGpus({}));
  ASSERT_FALSE(plan.layouts.empty());
  ASSERT_FALSE(same.layouts.empty());
  EXPECT_EQ(plan.layouts[0].layout, same.layouts[0].layout);
  EXPECT_FALSE(Plan(ReadGoodJob(kJobOf7b, {"parallel.overlap=false"}), PoolOfGpus({})).work.overlaps);
}

TEST(PlanJob, OnCpus_CountsTheMemoryOfAHostForItsRanks) {
  v1::Machines machines;
  v1::MachineGroup& group = *machines.add_groups();
  group.set_name("box");
  group.set_device(v1::MACHINE_DEVICE_CPU);
  group.set_ranks_per_host(2);
  group.set_host_memory_bytes(16'000'000'000);
  Problems problems;
  CompleteGroup("groups[0]", {}, &group, &problems);
  ASSERT_TRUE(problems.ok());
  const JobPlan plan = Plan(ReadGoodJob(kGoodJob), PoolsOf(machines)[0]);
  ASSERT_FALSE(plan.layouts.empty());
  EXPECT_THAT(KeysOfLayout(PoolsOf(machines)[0], plan.layouts[0].layout), HasSubstr("device: cpu"));
}

}  // namespace
}  // namespace trainyard::planner
