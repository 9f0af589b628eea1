// What a file of Accelerate or DeepSpeed means for a script: counts, variables, and refusals.
// tests/interop/accelerate_launch_test.py compares the variables with Accelerate's own.
#include "foreign/script_launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::foreign {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kFile[] = "/home/ada/a.yaml";
constexpr char kTwoCpus[] = "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\nmixed_precision: bf16\n";

std::string RefusalOf(const std::string& text, const ScriptLaunchFlags& flags = {}) {
  Problems problems;
  ReadScriptLaunch(text, kFile, flags, &problems);
  return std::string(problems.ToStatus().message());
}

TEST(ScriptLaunch, OfAccelerate_HasCountsAndVariables) {
  Problems problems;

  const ScriptLaunch launch = ReadScriptLaunch(kTwoCpus, kFile, {}, &problems);

  EXPECT_TRUE(problems.ok()) << problems.ToStatus();
  EXPECT_EQ(launch.num_processes, 2);
  EXPECT_EQ(launch.num_machines, 1);
  EXPECT_THAT(launch.env, Contains("ACCELERATE_MIXED_PRECISION=bf16"));
  EXPECT_THAT(launch.env, Contains("ACCELERATE_USE_CPU=True"));
  EXPECT_THAT(launch.env, Contains("ACCELERATE_DYNAMO_BACKEND=NO"));
  EXPECT_THAT(launch.notes, IsEmpty());
}

TEST(ScriptLaunch, FlagsReplaceValuesOfTheFile_AndANoteSaysSo) {
  Problems problems;

  const ScriptLaunch launch =
      ReadScriptLaunch(kTwoCpus, kFile, {.num_processes = 4, .mixed_precision = "no"}, &problems);

  EXPECT_EQ(launch.num_processes, 4);
  EXPECT_THAT(launch.env, Contains("ACCELERATE_MIXED_PRECISION=no"));
  EXPECT_THAT(launch.notes, Contains("--num_processes 4 replaces num_processes: 2 of /home/ada/a.yaml"));
  EXPECT_THAT(launch.notes, Contains("--mixed_precision no replaces mixed_precision: bf16 of /home/ada/a.yaml"));
}

TEST(ScriptLaunch, RankAndAddressOfAHost_HaveNoEffect_AndANoteSaysSo) {
  Problems problems;

  const ScriptLaunch launch = ReadScriptLaunch(
      "distributed_type: MULTI_GPU\nnum_processes: 8\nnum_machines: 2\nmachine_rank: 1\nmain_process_ip: 10.0.0.1\n",
      kFile, {}, &problems);

  EXPECT_EQ(launch.num_machines, 2);
  EXPECT_THAT(launch.notes, Contains(StartsWith("machine_rank: 1 of")));
  EXPECT_THAT(launch.notes, Contains(StartsWith("main_process_ip: 10.0.0.1 of")));
}

TEST(ScriptLaunch, AListOfClasses_IsPassedToTheScript) {
  Problems problems;

  const ScriptLaunch launch = ReadScriptLaunch(
      "distributed_type: FSDP\nnum_processes: 2\n"
      "fsdp_config: {fsdp_transformer_layer_cls_to_wrap: [GPT2Block, T5Block]}\n",
      kFile, {}, &problems);

  EXPECT_TRUE(problems.ok()) << problems.ToStatus();
  EXPECT_THAT(launch.env, Contains("FSDP_TRANSFORMER_CLS_TO_WRAP=GPT2Block,T5Block"));
}

TEST(ScriptLaunch, OfDeepSpeed_NamesTheFileToTheScript) {
  Problems problems;

  const ScriptLaunch launch =
      ReadScriptLaunch(R"({"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}})", kFile, {}, &problems);

  EXPECT_TRUE(problems.ok()) << problems.ToStatus();
  EXPECT_EQ(launch.num_processes, 0);
  EXPECT_THAT(launch.env, Contains("ACCELERATE_USE_DEEPSPEED=true"));
  EXPECT_THAT(launch.env, Contains("ACCELERATE_DEEPSPEED_CONFIG_FILE=/home/ada/a.yaml"));
  EXPECT_THAT(launch.env, Contains("ACCELERATE_MIXED_PRECISION=bf16"));
}

TEST(ScriptLaunch, WithoutAFile_FlagsDecide) {
  Problems problems;

  const ScriptLaunch launch = ReadScriptLaunch("", "", {.num_processes = 2, .cpu = true}, &problems);

  EXPECT_EQ(launch.num_processes, 2);
  EXPECT_THAT(launch.env, Contains("ACCELERATE_USE_CPU=True"));
  EXPECT_THAT(launch.env, Not(Contains(HasSubstr("FSDP"))));
}

TEST(ScriptLaunch, OfAFileThatCannotBeUsed_IsRefusedWithTheReason) {
  EXPECT_THAT(RefusalOf("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n"),
              HasSubstr("AMAZON_SAGEMAKER"));
  EXPECT_THAT(RefusalOf("distributed_type: XLA\nnum_processes: 8\n"), HasSubstr("XLA is not available"));
  EXPECT_THAT(RefusalOf("distributed_type: MEGATRON_LM\nnum_processes: 8\n"), HasSubstr("accelerate launch"));
  EXPECT_THAT(RefusalOf("distributed_type: MULTI_GPU\nnum_processes: -1\n"), HasSubstr("--num_processes N"));
  EXPECT_THAT(RefusalOf("distributed_type: MULTI_GPU\nnum_proceses: 2\n"), HasSubstr("did you mean 'num_processes'"));
  EXPECT_THAT(RefusalOf("distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: fp8\n"), HasSubstr("fp8"));
  EXPECT_THAT(RefusalOf("name: a\ntrain: {}\n"), HasSubstr("trainctl run"));
}

}  // namespace
}  // namespace trainyard::foreign
