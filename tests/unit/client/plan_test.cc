#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "client/estimate_view.h"
#include "client/plan_machines.h"
#include "client/plan_view.h"

namespace trainyard::client {
namespace {

using testing::HasSubstr;

v1::HostStatus HostOf(const std::string& name, const std::string& gpu, int gpus, uint32_t slots) {
  v1::HostStatus host;
  host.set_name(name);
  host.set_attached(true);
  host.set_reachable(true);
  host.set_slots(slots);
  host.set_memory_bytes(64'000'000'000);
  for (int i = 0; i < gpus; ++i) {
    v1::Gpu& device = *host.add_gpu_devices();
    device.set_name(gpu);
    device.set_memory_bytes(85'000'000'000);
  }
  return host;
}

TEST(MachinesOfHosts, GroupsEqualHosts_AndLeavesOutThoseWithoutRanks) {
  v1::ListHostsResponse hosts;
  *hosts.add_hosts() = HostOf("a", "NVIDIA H100 80GB HBM3", 8, 8);
  *hosts.add_hosts() = HostOf("b", "NVIDIA H100 80GB HBM3", 8, 8);
  *hosts.add_hosts() = HostOf("c", "", 0, 2);
  v1::HostStatus& cordoned = *hosts.add_hosts();
  cordoned = HostOf("d", "NVIDIA H100 80GB HBM3", 8, 8);
  cordoned.set_cordoned(true);

  const auto machines = MachinesOfHosts(hosts, v1::JobSpec());

  ASSERT_TRUE(machines.ok()) << machines.status();
  ASSERT_EQ(machines->machines.groups_size(), 2);
  const v1::MachineGroup& gpus = machines->machines.groups(0);
  EXPECT_EQ(gpus.hosts(), 2u);
  EXPECT_EQ(gpus.ranks_per_host(), 8u);
  EXPECT_EQ(gpus.memory_bytes(), 85'000'000'000u) << "as reported, not that of the data sheet";
  EXPECT_EQ(gpus.flops().bf16(), 989e12);
  const v1::MachineGroup& cpus = machines->machines.groups(1);
  EXPECT_EQ(cpus.hosts(), 1u);
  EXPECT_EQ(cpus.memory_bytes(), 32'000'000'000u);
  EXPECT_THAT(machines->notes, testing::Contains("1 host left out: cordoned"));
  EXPECT_THAT(machines->notes, testing::Contains(HasSubstr("the links of the hosts are not known")));
}

TEST(MachinesOfHosts, LeavesOutHostsThatTheJobDoesNotAllow) {
  v1::ListHostsResponse hosts;
  for (const char* name : {"a", "b", "c"}) *hosts.add_hosts() = HostOf(name, "", 0, 2);
  v1::JobSpec spec;
  spec.mutable_resources()->add_exclude_hosts("b");
  const auto without_b = MachinesOfHosts(hosts, spec);
  ASSERT_TRUE(without_b.ok()) << without_b.status();
  EXPECT_EQ(without_b->machines.groups(0).hosts(), 2u);
  EXPECT_THAT(without_b->notes, testing::Contains("1 host left out: in resources.exclude_hosts of the job"));

  spec.mutable_resources()->add_hosts("d");
  EXPECT_THAT(std::string(MachinesOfHosts(hosts, spec).status().message()),
              HasSubstr("no host of the coordinator can get ranks (3 hosts left out: not in resources.hosts of the "
                        "job)"));
}

TEST(MachinesOfHosts, OfAJobOnCpus_IgnoresGpus) {
  v1::ListHostsResponse hosts;
  *hosts.add_hosts() = HostOf("a", "NVIDIA GeForce RTX 4090", 2, 4);
  v1::JobSpec spec;
  spec.mutable_resources()->set_device(v1::DEVICE_CPU);
  const auto machines = MachinesOfHosts(hosts, spec);
  ASSERT_TRUE(machines.ok()) << machines.status();
  EXPECT_EQ(machines->machines.groups(0).device(), v1::MACHINE_DEVICE_CPU);
  EXPECT_EQ(machines->machines.groups(0).ranks_per_host(), 4u);
}

TEST(MachinesOfHosts, WithAnUnknownGpu_AsksForAFile) {
  v1::ListHostsResponse hosts;
  *hosts.add_hosts() = HostOf("a", "NVIDIA GeForce RTX 4090", 2, 2);
  EXPECT_THAT(std::string(MachinesOfHosts(hosts, v1::JobSpec()).status().message()),
              HasSubstr("the host a has the GPU 'NVIDIA GeForce RTX 4090', whose speed is not built in; describe the "
                        "hosts with --machines FILE"));
  EXPECT_THAT(std::string(MachinesOfHosts(v1::ListHostsResponse(), v1::JobSpec()).status().message()),
              HasSubstr("no host of the coordinator can get ranks"));
}

TEST(MachinesOfJob, OnGpus_AsksForAFile) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_ranks(4);
  const auto machines = MachinesOfJob(spec, 16'000'000'000);
  ASSERT_TRUE(machines.ok()) << machines.status();
  EXPECT_EQ(machines->machines.groups(0).ranks_per_host(), 4u);
  EXPECT_EQ(machines->machines.groups(0).memory_bytes(), 4'000'000'000u);
  ASSERT_EQ(machines->notes.size(), 1u);

  EXPECT_FALSE(MachinesOfJob(spec, 0).ok());
  spec.mutable_resources()->set_device(v1::DEVICE_CUDA);
  EXPECT_THAT(std::string(MachinesOfJob(spec, 16'000'000'000).status().message()), HasSubstr("--machines FILE"));
}

planner::JobPlan SamplePlan() {
  planner::JobPlan plan;
  plan.work.global = 64;
  plan.work.rows_per_sequence = 2048;
  plan.candidates = 1000;
  plan.memory_plans = 12;
  plan.rejected.push_back({.reason = "are slower", .count = 900});
  plan.rejected.push_back({.reason = "need more\nthan", .count = 95});
  plan.tree = {.leaf = 2,
               .alternatives = {{planner::Strategy::kZero}},
               .with_memory_savings = false,
               .reason = "it does not fit"};
  plan.tree_agrees = true;
  planner::PlannedLayout& planned = plan.layouts.emplace_back();
  planned.layout.ranks = 8;
  planned.layout.data = v1::DATA_PARALLEL_FSDP;
  planned.layout.micro = 4;
  planned.cost.seconds = 2;
  planned.cost.communication = 0.5;
  planned.needed_bytes = uint64_t{3} << 30;
  planned.tokens_per_s = 65536;
  planned.reason = "because";
  return plan;
}

std::vector<planner::Pool> SamplePools() {
  std::vector<planner::Pool> pools(1);
  pools[0].name = "pod";
  pools[0].device = v1::DEVICE_CUDA;
  pools[0].ranks_per_host = 8;
  pools[0].memory_bytes = 80'000'000'000;
  pools[0].inside.bytes_per_s = 450e9;
  return pools;
}

TEST(PlanText, BeginsWithTheRecommendation_AndEndsWithItsKeys) {
  const std::string text = PlanText(SamplePlan(), SamplePools(), 0);
  EXPECT_THAT(text,
              HasSubstr("pod (gpu): 1 host x 8 ranks, 69.8 GiB usable for each (of 80 GB), 450 GB/s within a host\n"));
  EXPECT_THAT(text, HasSubstr("Recommended: fsdp on 8 ranks\n  because\n  divides sample 8, attribute 1, parameter 1 "
                              "(stored parameters in 8 shards): 64 x 2048 -> 8 x 8 x 2048\n"));
  EXPECT_THAT(text, HasSubstr("fsdp    8      4 x 2           2 s   65.5k     3.0 GiB  25.0 %         0.0 %\n"));
  EXPECT_THAT(text, HasSubstr("Decision tree, case 2: ZeRO, because it does not fit; the layout above agrees\n"));
  EXPECT_THAT(text,
              HasSubstr("996 layouts considered (the time of 1000 predicted, the memory of 12 planned): 1 listed, "
                        "995 not chosen. Of these\n  900 are slower\n  95 need more\n\n"));
  EXPECT_THAT(text, HasSubstr("\nKeys for the job file:\ntrain:\n"));
}

TEST(PlanText, OfFewerRanksThanThereAre_SaysHowManyStayUnused) {
  std::vector<planner::Pool> pools = SamplePools();
  pools[0].hosts = 3;
  EXPECT_THAT(PlanText(SamplePlan(), pools, 0),
              HasSubstr("Recommended: fsdp on 8 ranks (16 of the 24 ranks of pod stay unused)\n"));
}

TEST(PlanText, OfOffload_ShowsTheMemoryOfAHost_AndOfALongStep_Minutes) {
  planner::JobPlan plan = SamplePlan();
  plan.layouts[0].memory.host = uint64_t{2} << 30;
  plan.layouts[0].cost.seconds = 7500;
  const std::string text = PlanText(plan, SamplePools(), 0);
  EXPECT_THAT(text, HasSubstr("HOST MEMORY\n"));
  EXPECT_THAT(text, HasSubstr("16.0 GiB\n"));
  EXPECT_THAT(text, HasSubstr("2h05m"));
}

TEST(PlanText, IfTheTreeDiffers_ComparesTheTimes) {
  planner::JobPlan plan = SamplePlan();
  plan.tree_agrees = false;
  plan.layouts[0].layout.data = v1::DATA_PARALLEL_DDP;
  EXPECT_THAT(PlanText(plan, SamplePools(), 0),
              HasSubstr("; the cost model differs: no layout above is one of these\n"));
  plan.layouts.push_back(plan.layouts[0]);
  plan.layouts[1].layout.data = v1::DATA_PARALLEL_FSDP;
  plan.layouts[1].cost.seconds = 2.5;
  EXPECT_THAT(
      PlanText(plan, SamplePools(), 0),
      HasSubstr("; the cost model differs: the first of these above, fsdp on 8 ranks, takes 2.5 s instead of 2 s\n"));
}

TEST(PlanText, OfManyReasons_CountsThoseThatAreNotShown) {
  planner::JobPlan plan = SamplePlan();
  plan.rejected.assign(8, {.reason = "are slower", .count = 10});
  EXPECT_THAT(PlanText(plan, SamplePools(), 0), HasSubstr("  20 have 2 other reasons, which --json lists\n"));
  EXPECT_EQ(PlanJson(plan, SamplePools(), {})["considered"], 81);
}

TEST(PlanText, OfAJobWithALayout_NamesTheKeysThatItReplacesAndThoseThatStay) {
  planner::JobPlan plan = SamplePlan();
  plan.job_keys.replaced = {"train.batch.micro", "parallel.tensor"};
  plan.job_keys.kept = {"parallel.overlap"};
  EXPECT_THAT(
      PlanText(plan, SamplePools(), 0),
      HasSubstr("The job has train.batch.micro, parallel.tensor, which the keys below replace: remove them first, "
                "or let --write FILE write the whole job. Kept: parallel.overlap.\n\nKeys for the job file:\n"));
}

TEST(PlanText, OfAClassifier_CountsSamples) {
  planner::JobPlan plan = SamplePlan();
  plan.work.rows_per_sequence = 1;
  const std::string text = PlanText(plan, SamplePools(), 0);
  EXPECT_THAT(text, HasSubstr("steps of 64 samples\n"));
  EXPECT_THAT(text, HasSubstr("SAMPLES/S"));
  EXPECT_THAT(text, testing::Not(HasSubstr("okens")));
}

TEST(PlanText, OnATerminal_FitsIntoItsColumns) {
  planner::JobPlan plan = SamplePlan();
  plan.layouts[0].reason = "does not fit without sharding: needs 120.5 of 69.8 GiB; here a rank needs 54.7 GiB";
  const std::vector<std::string> lines = absl::StrSplit(PlanText(plan, SamplePools(), 60), '\n');
  for (const std::string& line : lines) EXPECT_LE(line.size(), 60u) << line;
}

TEST(PlanJson, HasTheLayoutsTheirKeysAndTheRejections) {
  const nlohmann::ordered_json json = PlanJson(SamplePlan(), SamplePools(), {"a note"});
  EXPECT_EQ(json["layouts"][0]["layout"], "fsdp");
  EXPECT_EQ(json["layouts"][0]["micro_batches"], 2);
  EXPECT_EQ(json["layouts"][0]["step_s"], 2);
  EXPECT_EQ(json["layouts"][0]["dimensions"]["sample"], 8);
  EXPECT_EQ(json["rejected"][0]["count"], 900);
  EXPECT_EQ(json["tree"]["case"], 2);
  EXPECT_EQ(json["notes"][0], "a note");
  EXPECT_FALSE(json.contains("nearest"));
}

TEST(NothingFits, NamesWhatComesNearest) {
  planner::JobPlan plan;
  EXPECT_EQ(NothingFits(plan, SamplePools()), "no layout is possible on these machines");
  planner::NearMiss& nearest = plan.nearest.emplace_back();
  nearest.layout.ranks = 8;
  nearest.layout.data = v1::DATA_PARALLEL_FSDP;
  nearest.needed_bytes = uint64_t{90} << 30;
  EXPECT_THAT(NothingFits(plan, SamplePools()), HasSubstr("fsdp on 8 ranks of pod, needs 90.0 GiB of 69.8 GiB; use "));
  EXPECT_EQ(PlanJson(plan, SamplePools(), {})["nearest"]["ranks"], 8);
  EXPECT_THAT(NothingFits(plan, SamplePools()), HasSubstr("use more ranks, or shorter sequences"));
  EXPECT_THAT(NothingFits(plan, SamplePools()), HasSubstr(", or 16-bit types (train.precision)"));
  plan.enough_ranks = 64;
  plan.work.global = 32;
  plan.work.param_bytes = 2;
  EXPECT_THAT(NothingFits(plan, SamplePools()), HasSubstr("use 64 ranks on 8 hosts of this kind (with fsdp and "
                                                          "recompute blocks, and train.batch.global 64 or more), or "));
  EXPECT_THAT(NothingFits(plan, SamplePools()), testing::Not(HasSubstr("16-bit")));

  std::vector<planner::Pool> pools = SamplePools();
  pools[0].host_memory_bytes = uint64_t{16} << 30;
  nearest.needed_bytes = uint64_t{40} << 30;
  nearest.host_bytes = uint64_t{80} << 30;
  EXPECT_THAT(NothingFits(plan, pools), HasSubstr("needs 80.0 GiB of 16.0 GiB on each host; use "));
}

TEST(EstimateText, OfTheDocuments_HasTheirSixteenCells) {
  const std::string text = EstimateText({.parameters = 7e9, .ranks = 4, .convention = planner::Convention::kDocuments});
  EXPECT_THAT(text, HasSubstr("COMPONENT       No ZeRO  ZeRO-1  ZeRO-2   ZeRO-3\n"
                              "parameters      14 GB    14 GB   14 GB    3.5 GB\n"
                              "gradients       14 GB    14 GB   3.5 GB   3.5 GB\n"
                              "optimizer       56 GB    14 GB   14 GB    14 GB\n"
                              "total per rank  84 GB    42 GB   31.5 GB  21 GB\n"));
  EXPECT_THAT(text, HasSubstr("not halved"));
}

TEST(EstimateText, OfThePaper_ShowsTheSavingsAsRanksGrow) {
  const std::string text = EstimateText({.parameters = 7e9, .ranks = 64, .convention = planner::Convention::kPaper});
  EXPECT_THAT(text, HasSubstr("64 (these)    3.82 x  7.21 x  64 x\n"));
  EXPECT_THAT(text, HasSubstr("1024          3.99 x  7.95 x  1024 x\n"));
  EXPECT_THAT(text, HasSubstr("N, very many  4 x     8 x     N x\n"));
}

TEST(EstimateText, OfASmallModel_IsInMB_AndNamesItsRanksOnce) {
  const std::string text = EstimateText({.parameters = 7e6, .ranks = 4, .convention = planner::Convention::kDocuments});
  EXPECT_THAT(text, HasSubstr("parameters      14 MB    14 MB   14 MB    3.5 MB\n"));
  EXPECT_THAT(text, HasSubstr("\n4 (these)"));
  EXPECT_THAT(text, testing::Not(HasSubstr("\n4  ")));
}

TEST(EstimateJson, HasBytesAndSavings) {
  const nlohmann::ordered_json json =
      EstimateJson({.parameters = 7e9, .ranks = 4, .convention = planner::Convention::kDocuments});
  EXPECT_EQ(json["convention"], "documents");
  EXPECT_EQ(json["stages"][2]["total_bytes"], 31.5e9);
  EXPECT_EQ(json["stages"][3]["saving"], 4);
}

TEST(ParseParameters, AcceptsUnits_AndRefusesOtherText) {
  EXPECT_EQ(ParseParameters("7e9").value(), 7e9);
  EXPECT_EQ(ParseParameters("7B").value(), 7e9);
  EXPECT_EQ(ParseParameters("350m").value(), 350e6);
  for (const char* text : {"", "B", "seven", "0", "-7e9", "inf", "nan", "1e16", "7BB"}) {
    EXPECT_FALSE(ParseParameters(text).ok()) << text;
  }
}

}  // namespace
}  // namespace trainyard::client
