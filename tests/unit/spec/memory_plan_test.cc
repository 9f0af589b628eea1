#include "spec/memory_plan.h"

#include <gtest/gtest.h>

#include "models/model_description.h"
#include "spec/model_sizes.h"
#include "spec/prepare.h"
#include "tests/unit/spec/sample_job.h"

namespace trainyard {
namespace {

v1::JobSpec Resolved(const std::vector<std::string>& overrides) {
  const ReadJob read = Read(kGoodJob, overrides);
  EXPECT_EQ(read.Errors(), "");
  auto prepared = PrepareJob(read.spec, {.job_id = "id", .default_run_root = "/runs"});
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  return prepared.ok() ? prepared->spec : v1::JobSpec();
}

MemoryPlan Plan(const std::vector<std::string>& overrides) { return PlanMemory(Resolved(overrides)); }

// Of kGoodJob: 2 layers of width 16, context 8, vocabulary 256.
constexpr uint64_t kBlock = 12 * 16 * 16 + 13 * 16, kRoot = (256 + 8) * 16 + 2 * 16, kAll = kRoot + 2 * kBlock;

TEST(PlanMemory, OfReplicatedState_CountsFourTensorsOfEveryParameter) {
  const MemoryPlan plan = Plan({});
  EXPECT_EQ(plan.parameters, 4 * kAll);
  EXPECT_EQ(plan.gradients, 4 * kAll);
  EXPECT_EQ(plan.optimizer, 8 * kAll);
  EXPECT_EQ(plan.gathered, 0u);
  EXPECT_EQ(plan.host, 0u);
  EXPECT_EQ(plan.activations, 4u * 2 * 8 * (2 * 16 * 16 + 2 * 16));
  EXPECT_EQ(plan.scores, 4u * 2 * 8 * 2 * 256);
}

TEST(PlanMemory, OfEachStrategy_DividesWhatItShards) {
  const MemoryPlan zero1 = Plan({"parallel.data=zero1"}), zero2 = Plan({"parallel.data=zero2"}),
                   fsdp = Plan({"parallel.data=fsdp"});
  EXPECT_EQ(zero1.gradients, 4 * kAll);
  EXPECT_EQ(zero1.optimizer, 4 * kAll);
  EXPECT_EQ(zero2.gradients, 2 * kAll);
  EXPECT_EQ(zero2.parameters, 4 * kAll);
  EXPECT_EQ(fsdp.parameters, 2 * kAll);
  EXPECT_EQ(fsdp.gathered, 4 * (kRoot + 2 * kBlock) + 4 * (kRoot + kBlock));
}

TEST(PlanMemory, In16Bits_CountsTheMasters) {
  const MemoryPlan plan = Plan({"train.precision=bf16"});
  EXPECT_EQ(plan.parameters, 2 * kAll);
  EXPECT_EQ(plan.optimizer, (4 + 8) * kAll);
  EXPECT_EQ(plan.gradients, 4 * kAll);
}

TEST(PlanMemory, OfFrozenParameters_CountsTheirWeightsOnly) {
  const MemoryPlan plan = Plan({"train.freeze=[\"h.*\"]"});
  EXPECT_EQ(plan.parameters, 4 * kAll);
  EXPECT_EQ(plan.gradients, 4 * kRoot);
  EXPECT_EQ(plan.optimizer, 8 * kRoot);
}

TEST(PlanMemory, OfOffloadedState_CountsItOnTheHost) {
  const MemoryPlan plan = Plan({"parallel.data=fsdp", "parallel.offload={optimizer: true, parameters: true}"});
  EXPECT_EQ(plan.parameters + plan.optimizer, 0u);
  EXPECT_EQ(plan.host, (2 + 2 + 4) * kAll);
}

TEST(PlanMemory, WithRecompute_StoresTheInputsOfBlocksAndOneBlock) {
  EXPECT_EQ(Plan({"parallel.recompute=blocks"}).activations, 4u * 2 * 8 * (2 * 16 + 16 * 16 + 2 * 16));
  EXPECT_GT(Plan({"parallel.recompute=selective"}).activations, Plan({"parallel.recompute=blocks"}).activations);
}

TEST(PlanMemory, OfALargeVocabulary_IsBoundedByTheChunk) {
  const std::vector<std::string> many = {"train.model.context=1024", "train.model.vocabulary=50257"};
  EXPECT_EQ(Plan(many).scores, 4u * 2 * (1u << 22));
}

TEST(PlanMemory, OfLlama70BOn64Ranks_FitsIntoGpusOf80GB) {
  const ReadJob read = Read(R"(name: large
train:
  model: {preset: llama3-70b}
  data: {text: [corpus], tokenizer_path: /models/llama}
  batch: {global: 64, micro: 1, length: 4096}
  precision: bf16
  steps: 10
parallel: {data: fsdp, recompute: blocks}
resources: {ranks: 64}
)");
  auto prepared = PrepareJob(read.spec, {.job_id = "id", .default_run_root = "/runs"});
  ASSERT_TRUE(prepared.ok()) << prepared.status();

  const MemoryPlan plan = PlanMemory(prepared->spec);

  EXPECT_GT(plan.device_total(), uint64_t{20} << 30);
  EXPECT_LT(plan.device_total(), uint64_t{80} << 30);
}

}  // namespace
}  // namespace trainyard
