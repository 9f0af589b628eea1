// The flags of `trainctl launch`: the job that they mean, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/launch_config.h"
#include "client/launch_flags.h"
#include "client/launch_progress.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kScript[] = "runs/Train_GPT.py";

LaunchFacts Here() { return {.on_cluster = false, .cores = 8, .gpus = 0, .workdir = "/home/ada"}; }
LaunchFacts Cluster() { return {.on_cluster = true, .cores = 8, .gpus = 0, .workdir = "/home/ada"}; }

std::string Refusal(const LaunchFlags& flags, const LaunchFacts& facts = Here()) {
  const auto plan = PlanLaunch(flags, facts);
  return plan.ok() ? "" : std::string(plan.status().message());
}

TEST(LaunchFlags, BecomeACommandJob) {
  const auto plan = PlanLaunch({.nproc_per_node = "2", .max_restarts = 3, .program = {kScript, "--lr", "0.1"}}, Here());

  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->spec.name(), "train-gpt");
  EXPECT_EQ(plan->spec.resources().ranks(), 2u);
  EXPECT_EQ(plan->spec.recovery().max_restarts(), 3u);
  EXPECT_EQ(plan->spec.command().workdir(), "/home/ada");
  EXPECT_THAT(plan->spec.command().argv(), ElementsAre("python3", "-u", kScript, "--lr", "0.1"));
  EXPECT_TRUE(plan->prefixes);
  EXPECT_THAT(plan->notes, IsEmpty());
}

TEST(LaunchFlags, RunModules_OrProgramsWithoutPython) {
  EXPECT_THAT(PlanLaunch({.module = true, .program = {"a.b", "x"}}, Here())->spec.command().argv(),
              ElementsAre("python3", "-u", "-m", "a.b", "x"));
  const auto plan = PlanLaunch({.no_python = true, .program = {"true"}}, Here());
  EXPECT_THAT(plan->spec.command().argv(), ElementsAre("true"));
  EXPECT_FALSE(plan->prefixes) << "the output of a single rank needs no prefixes";
}

TEST(LaunchFlags, CountTheRanksOfThisMachine) {
  const auto ranks = [](const char* nproc, uint32_t gpus) {
    LaunchFacts facts = Here();
    facts.gpus = gpus;
    return PlanLaunch({.nproc_per_node = nproc, .program = {kScript}}, facts)->spec.resources().ranks();
  };
  EXPECT_EQ(ranks("cpu", 4), 8u);
  EXPECT_EQ(ranks("gpu", 4), 4u);
  EXPECT_EQ(ranks("auto", 4), 4u);
  EXPECT_EQ(ranks("auto", 0), 8u);
}

TEST(LaunchFlags, SpanHostsOfACluster) {
  const auto plan = PlanLaunch({.nnodes = "2:2", .nproc_per_node = "4", .program = {kScript}}, Cluster());

  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->spec.resources().ranks(), 8u);
  EXPECT_EQ(plan->spec.command().ranks_per_host(), 4u);
  EXPECT_FALSE(plan->spec.command().has_min_ranks());
}

TEST(LaunchFlags, AllowARangeOfHosts) {
  const auto plan = PlanLaunch({.nnodes = "1:3", .nproc_per_node = "2", .program = {kScript}}, Cluster());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->spec.resources().ranks(), 6u);
  EXPECT_EQ(plan->spec.command().min_ranks(), 2u);
  EXPECT_THAT(plan->notes, ElementsAre(HasSubstr("without --max-restarts: the job fails when a host is lost")));

  const auto here = PlanLaunch({.nnodes = "1:3", .nproc_per_node = "2", .program = {kScript}}, Here());
  ASSERT_TRUE(here.ok()) << here.status();
  EXPECT_EQ(here->spec.resources().ranks(), 2u);
  EXPECT_FALSE(here->spec.command().has_min_ranks());
  EXPECT_THAT(here->notes, ElementsAre(HasSubstr("the script runs on this machine only")));
}

TEST(LaunchFlags, AllProblemsAreReportedTogether) {
  const std::string text = Refusal({.nnodes = "2:4",
                                    .nproc_per_node = "many",
                                    .module = true,
                                    .no_python = true,
                                    .redirects = "9",
                                    .local_ranks_filter = "a",
                                    .node_rank = 1,
                                    .program = {"--nproc_per_nod=2"},
                                    .known = {"--nnodes", "--nproc_per_node"}});

  for (const char* expected :
       {"--nproc-per-node: expected a number", "--nnodes 2:4 needs a cluster", "--node-rank 1: launch runs once",
        "--redirects: expected 0 (none)", "--local-ranks-filter: expected ranks", "unknown flag '--nproc_per_nod=2'",
        "did you mean --nproc_per_node?", "either --module or --no-python"}) {
    EXPECT_THAT(text, HasSubstr(expected));
  }
}

TEST(LaunchFlags, RefuseInvalidValuesAndCombinations) {
  EXPECT_THAT(Refusal({}), HasSubstr("no program: expected a script"));
  EXPECT_THAT(Refusal({.nnodes = "0", .program = {kScript}}), HasSubstr("--nnodes: expected a number of hosts"));
  EXPECT_THAT(Refusal({.nnodes = "3:2", .program = {kScript}}), HasSubstr("--nnodes: expected a number of hosts"));
  EXPECT_THAT(Refusal({.nproc_per_node = "gpu", .program = {kScript}}), HasSubstr("this machine has no GPU"));
  EXPECT_THAT(Refusal({.nproc_per_node = "auto", .program = {kScript}}, Cluster()), HasSubstr("give a number"));
  EXPECT_THAT(Refusal({.nnodes = "2", .standalone = true, .program = {kScript}}, Cluster()),
              HasSubstr("--standalone means one host"));
}

TEST(LaunchFlags, RefuseTheChoiceOfOutputWithJson) {
  LaunchFacts facts = Here();
  facts.json = true;
  EXPECT_THAT(Refusal({.log_dir = "logs", .program = {kScript}}, facts), HasSubstr("have no effect with --json"));
  EXPECT_THAT(Refusal({.tee = "3", .program = {kScript}}, facts), HasSubstr("have no effect with --json"));
  EXPECT_THAT(Refusal({.tee = "0:0,1:2", .program = {kScript}}, facts), HasSubstr("have no effect with --json"));
  EXPECT_EQ(Refusal({.redirects = "0:0", .tee = "0", .program = {kScript}}, facts), "");
  EXPECT_EQ(Refusal({.program = {kScript}}, facts), "");
}

TEST(LaunchFlags, OfAccelerate_WarnThatRanksWithoutGpus_AreNotConnected) {
  const LaunchFlags flags{
      .nproc_per_node = "2", .env = {"ACCELERATE_USE_CPU=False"}, .for_accelerate = true, .program = {kScript}};
  LaunchFlags on_cpu = flags, of_torchrun = flags;
  on_cpu.env = {"ACCELERATE_USE_CPU=True"};
  of_torchrun.for_accelerate = false;
  LaunchFacts with_gpus = Here();
  with_gpus.gpus = 2;

  EXPECT_THAT(PlanLaunch(flags, Here())->notes, ElementsAre(HasSubstr("each trains alone; give --cpu")));
  EXPECT_THAT(PlanLaunch(on_cpu, Here())->notes, IsEmpty());
  EXPECT_THAT(PlanLaunch(of_torchrun, Here())->notes, IsEmpty());
  EXPECT_THAT(PlanLaunch(flags, with_gpus)->notes, IsEmpty());
  EXPECT_THAT(PlanLaunch(flags, Cluster())->notes, IsEmpty());
}

TEST(LaunchFlags, RedirectsWithoutAFolder_AreNoted) {
  EXPECT_THAT(PlanLaunch({.redirects = "1", .program = {kScript}}, Here())->notes,
              ElementsAre(HasSubstr("--redirects without --log-dir")));
  EXPECT_THAT(PlanLaunch({.log_dir = "logs", .redirects = "1", .program = {kScript}}, Here())->notes, IsEmpty());
}

TEST(VisibleGpus, EndAtTheFirstInvalidName) {
  EXPECT_EQ(CountVisibleGpus("0,1"), 2u);
  EXPECT_EQ(CountVisibleGpus("GPU-1a2b, GPU-3c4d"), 2u);
  EXPECT_EQ(CountVisibleGpus("0,-1,1"), 1u);
  for (const char* none : {"", "-1", "NoDevFiles", "none"}) EXPECT_EQ(CountVisibleGpus(none), 0u) << none;
}

TEST(LaunchFlags, WithoutEffect_AreNamedOnce) {
  const auto plan = PlanLaunch({.without_effect = {"--rdzv-backend", "--rdzv-endpoint"}, .program = {kScript}}, Here());

  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->notes.size(), 1u);
  EXPECT_THAT(plan->notes[0], HasSubstr("--rdzv-backend, --rdzv-endpoint have no effect"));
}

TEST(StreamChoices, AreForAllRanks_OrForSome) {
  const StreamChoice all = *StreamChoice::Parse("1");
  EXPECT_TRUE(all.Has(5, /*is_stderr=*/false));
  EXPECT_FALSE(all.Has(5, /*is_stderr=*/true));
  const StreamChoice some = *StreamChoice::Parse("0:3,1:2");
  EXPECT_TRUE(some.Has(0, false));
  EXPECT_FALSE(some.Has(1, false));
  EXPECT_TRUE(some.Has(1, true));
  EXPECT_FALSE(some.Has(2, true));
  EXPECT_FALSE(StreamChoice::Parse("0:4").ok());
  EXPECT_FALSE(StreamChoice::Parse("").ok());
}

TEST(LaunchOutput, HasAFileForEachAttemptRankAndStream) {
  v1::LogLine line;
  line.set_rank(3);
  line.set_generation(2);
  EXPECT_EQ(OutputFile("/logs", "k3x7q2ab", line), "/logs/k3x7q2ab/attempt_1/3/stdout.log");
  line.set_is_stderr(true);
  EXPECT_EQ(OutputFile("/logs", "k3x7q2ab", line), "/logs/k3x7q2ab/attempt_1/3/stderr.log");
}

TEST(LaunchOutput, ThatCannotBeStored_BecauseTheDiskIsFull_IsReportedOnce) {
  const TemporaryFolder folder;
  LaunchPlan plan;
  plan.log_dir = folder.path();
  plan.redirects = *StreamChoice::Parse("3");  // the lines are not shown
  v1::LogLine line;
  line.set_generation(1);
  line.set_text("hello");
  const std::filesystem::path path = OutputFile(plan.log_dir, "k3x7q2ab", line);
  std::filesystem::create_directories(path.parent_path());
  std::filesystem::create_symlink("/dev/full", path);
  v1::Job job;
  job.set_job_id("k3x7q2ab");
  const std::unique_ptr<Progress> progress = NewLaunchProgress(plan);
  progress->Start(job, {});

  testing::internal::CaptureStderr();
  progress->Output(line);
  progress->Output(line);
  const std::string said = testing::internal::GetCapturedStderr();

  EXPECT_EQ(said, "trainctl: --log-dir: " + path.string() + " cannot be written, so output is missing there\n");
}

TEST(LaunchFlags, ASeparatorBeforeTheScript_IsDropped_AndThoseOfTheScriptStay) {
  CLI::App app("", "trainctl");
  Globals globals;
  app.add_option("--coordinator", globals.coordinator);
  Chosen chosen;
  AddLaunch(app, globals, &chosen);
  const auto without = [&app](std::vector<std::string> arguments) { return WithoutLaunchSeparator(app, arguments); };

  EXPECT_THAT(without({"launch", "--", "a.py", "--", "x"}), ElementsAre("launch", "a.py", "--", "x"));
  EXPECT_THAT(without({"--coordinator", "h:1", "launch", "--num_processes", "2", "-m", "--", "a"}),
              ElementsAre("--coordinator", "h:1", "launch", "--num_processes", "2", "-m", "a"));
  EXPECT_THAT(without({"launch", "a.py", "--", "x"}), ElementsAre("launch", "a.py", "--", "x"));
  EXPECT_THAT(without({"run", "--", "job.yaml"}), ElementsAre("run", "--", "job.yaml"));
}

TEST(LaunchFlags, CountsOfAccelerateAndOfTorchrun_AreCombinedOrRefused) {
  LaunchFlags launch;
  launch.nproc_per_node = "4";
  AccelerateFlags machines;
  machines.flags.num_machines = 2;
  machines.for_accelerate = machines.has_ranks = true;
  EXPECT_TRUE(ApplyAccelerateFlags(machines, "/", &launch).ok());
  EXPECT_EQ(launch.nnodes, "2");
  EXPECT_EQ(launch.nproc_per_node, "4");

  AccelerateFlags processes;
  processes.flags.num_processes = 8;
  processes.for_accelerate = processes.has_hosts = true;
  EXPECT_THAT(std::string(ApplyAccelerateFlags(processes, "/", &launch).message()),
              HasSubstr("with --nnodes, give --nproc-per-node"));
}

}  // namespace
}  // namespace trainyard::client
