#include "spec/memory_plan.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
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

// The sizes of kGoodJob, which has 2 layers of width 16, context 8 and vocabulary 256.
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
  // One micro-batch on each rank.
  const auto plan = [](const char* strategy) {
    return Plan({absl::StrCat("parallel.data=", strategy), "train.batch.micro=4"});
  };
  const MemoryPlan zero1 = plan("zero1"), zero2 = plan("zero2"), fsdp = plan("fsdp");
  EXPECT_EQ(zero1.gradients, 4 * kAll);
  EXPECT_EQ(zero1.optimizer, 4 * kAll);
  EXPECT_EQ(zero2.gradients, 2 * kAll);
  EXPECT_EQ(zero2.parameters, 4 * kAll);
  EXPECT_EQ(fsdp.parameters, 2 * kAll);
  EXPECT_EQ(fsdp.gathered, 4 * (kRoot + 2 * kBlock) + 4 * (kRoot + 2 * kBlock - kBlock / 2));
}

// kGoodJob has two micro-batches on each rank.
TEST(PlanMemory, OfShardedGradients_IsThatOfAllGradients_WhileThoseOfSeveralMicroBatchesAreAddedUp) {
  for (const char* strategy : {"zero2", "fsdp"}) {
    const std::string data = absl::StrCat("parallel.data=", strategy);
    EXPECT_EQ(Plan({data}).gradients, 4 * kAll) << strategy;
    EXPECT_EQ(Plan({data, "parallel.reduce_every_micro_batch=true"}).gradients, 2 * kAll) << strategy;
  }
  EXPECT_EQ(Plan({"parallel.data=fsdp"}).gathered, 4 * (kRoot + 2 * kBlock) + 4 * kBlock)
      << "the parameters, and the shards of two blocks that are received";
}

TEST(PlanMemory, In16Bits_CountsTheMasters) {
  const MemoryPlan plan = Plan({"train.precision=bf16"});
  EXPECT_EQ(plan.parameters, 2 * kAll);
  EXPECT_EQ(plan.optimizer, (4 + 8) * kAll);
  EXPECT_EQ(plan.gradients, 4 * kAll);
}

TEST(PlanMemory, OfGradientsSentIn16Bits_CountsTheCopyThatIsSent) {
  EXPECT_EQ(Plan({"train.precision={param: bf16}"}).gradients, (4 + 2) * kAll);
  EXPECT_EQ(Plan({"train.precision={param: bf16}", "parallel.data=zero1"}).gradients, (4 + 2) * kAll);
  EXPECT_EQ(Plan({"train.precision={param: bf16}", "parallel.data=zero2"}).gradients, 4 * kAll)
      << "the copies of buckets are not counted here, because their memory is used again";
}

// A block is gathered into memory that can also hold its gradients, which are sent in fp32.
TEST(PlanMemory, OfGatheredBlocksIn16Bits_CountsSpaceForTheWiderType) {
  const char* const kFsdp = "parallel.data=fsdp";
  EXPECT_EQ(Plan({"train.precision=bf16", kFsdp}).gathered, 2 * kRoot + 4 * 2 * kBlock + 4 * kBlock);
  EXPECT_EQ(Plan({"train.precision={param: bf16}", kFsdp}).gathered,
            2 * kRoot + 2 * 2 * kBlock + 4 * kBlock + 2 * 2 * kBlock);
  const std::vector<MemoryPlan> stages =
      PlanMemoryOfStages(Resolved({"train.precision=bf16", "parallel={data: fsdp, pipeline: 2}", "resources.ranks=4",
                                   "train.batch={global: 8, micro: 1}"}));
  EXPECT_EQ(stages[0].gathered, 2u * (256 * 16 + 8 * 16) + 4 * kBlock + 4 * kBlock / 2)
      << "a stage gathers its root and its block, and receives the shard of the block's sums";
}

TEST(PlanMemory, OfTheOnlyShard_GathersNothing_UnlessItIsOnTheHost) {
  const std::string ranks = "resources.ranks=1", micro = "train.batch.micro=8";
  EXPECT_EQ(Plan({ranks, micro, "parallel.data=fsdp"}).gathered, 0u);
  EXPECT_EQ(Plan({ranks, micro, "parallel.data=zero2"}).gathered, 0u);
  EXPECT_EQ(Plan({ranks, micro, "parallel={data: fsdp, offload: {parameters: true}}"}).gathered,
            4 * (kRoot + 2 * kBlock));
}

TEST(PlanMemory, OfFrozenParameters_CountsTheirWeightsOnly) {
  const MemoryPlan plan = Plan({"train.freeze=[\"h.*\"]"});
  EXPECT_EQ(plan.parameters, 4 * kAll);
  EXPECT_EQ(plan.gradients, 4 * kRoot);
  EXPECT_EQ(plan.optimizer, 8 * kRoot);
}

TEST(PlanMemory, OfFrozenParametersIn16Bits_DividesTheirMastersOnlyWhereParametersAreSharded) {
  const auto optimizer = [](const char* strategy) {
    return Plan({"train.freeze=[\"h.*\"]", "train.precision=bf16", absl::StrCat("parallel.data=", strategy)}).optimizer;
  };
  for (const char* strategy : {"zero1", "zero2"}) {
    EXPECT_EQ(optimizer(strategy), (4 + 8) * kRoot / 2 + 4 * 2 * kBlock) << strategy;
  }
  EXPECT_EQ(optimizer("fsdp"), (4 + 8) * kRoot / 2 + 4 * kBlock);
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

// kGoodJob has 2 heads, in each of which each token has a row of 8 weights.
TEST(PlanMemory, WithDropoutInAttention_StoresTheWeightsOfAllPairsOfTokens) {
  constexpr uint64_t kWeights = 2 * 8, kHead = 2 * 16;
  EXPECT_EQ(Plan({"train.model.dropout=0.1"}).activations, 4u * 2 * 8 * (2 * (16 * 16 + 2 * kWeights) + kHead));
  EXPECT_EQ(Plan({"train.model.dropout=0.1", "parallel.tensor=2"}).activations,
            4u * 2 * 8 * (2 * (4 * 16 + 12 * 8 + 2 * kWeights / 2) + kHead));
  EXPECT_EQ(Plan({"train.model.dropout=0.1", "train.precision=bf16"}).activations,
            2u * 2 * 8 * (2 * (16 * 16 + 2 * 2 * kWeights + 3 * 16) + kHead))
      << "attention with dropout is computed in fp32";
}

// The second of three blocks is computed again, as in worker/parallel/recompute.h.
TEST(PlanMemory, WithRecomputeOfEverySecondBlock_StoresTheFirstAndTheThird) {
  EXPECT_EQ(Plan({"parallel.recompute={mode: blocks, every: 2}", "train.model.layers=3"}).activations,
            4u * 2 * 8 * (2 * 16 * 16 + 16 + 16 * 16 + 2 * 16));
  EXPECT_EQ(Plan({"parallel.recompute={mode: blocks, every: 3}"}).activations, Plan({}).activations)
      << "there is no third block";
}

// Without adapters, a block stores 16 times the width for each token. In kGoodJob the inputs of the four projections
// are 16, 16, 16 and 64 wide, their outputs 48, 16, 64 and 16.
uint64_t ActivationsWithAdapters(const std::string& more, const std::string& recompute = "none") {
  return Plan({absl::StrCat("train.lora={rank: 4, ", more, "}"), absl::StrCat("parallel.recompute=", recompute)})
      .activations;
}

TEST(PlanMemory, OfAdapters_CountsWhatTheirProductsStore) {
  const std::string all = "targets: [c_attn, attn.c_proj, c_fc, mlp.c_proj]";
  constexpr uint64_t kToken = 4 * 2 * 8, kStored = 16 * 16 + 4 * 4, kHead = 2 * 16;
  EXPECT_EQ(ActivationsWithAdapters(all), kToken * (2 * kStored + kHead));
  EXPECT_EQ(ActivationsWithAdapters(all + ", dropout: 0.1"), kToken * (2 * (kStored + 3 * 16 + 64) + kHead));
  EXPECT_EQ(ActivationsWithAdapters(all, "blocks"), kToken * (2 * 16 + kStored + 64 + kHead));
  constexpr uint64_t kProducts = 8 * 16 + (48 + 16 + 64 + 16) + 4 * 4;
  EXPECT_EQ(ActivationsWithAdapters(all, "selective"),
            kToken * (2 * (16 + kProducts) + (kStored + 64 - kProducts) + kHead));
  EXPECT_EQ(ActivationsWithAdapters("targets: ['h.1.*']"), kToken * (kStored + kHead)) << "block 0 stores nothing";
}

TEST(PlanMemory, OfBlocksBeforeTheFirstTrainedParameter_StoresNothing) {
  constexpr uint64_t kToken = 4 * 2 * 8;
  EXPECT_EQ(Plan({"train.freeze=[\"h.0.*\", wte.weight, wpe.weight]"}).activations, kToken * (16 * 16 + 2 * 16));
  EXPECT_EQ(Plan({"train.freeze=[\"h.0.*\"]"}).activations, kToken * (2 * 16 * 16 + 2 * 16))
      << "the embedding is trained";
}

TEST(PlanMemory, OfAdaptersWithFsdp_HoldsTheirGradientsInMemoryForTwoBlocks) {
  const MemoryPlan plan =
      Plan({"train.lora={rank: 4, targets: [c_attn]}", "parallel.data=fsdp", "train.batch.micro=4"});
  constexpr uint64_t kAdapters = 4 * (16 + 48), kAdapted = kBlock + kAdapters;
  EXPECT_EQ(plan.gathered, 4 * (kRoot + 2 * kAdapted) + 4 * (2 * kAdapted - kAdapters / 2));
}

TEST(PlanMemory, OfTensorRanks_DividesMatricesAndTheActivationsInsideBlocks) {
  const MemoryPlan plan = Plan({"parallel.tensor=2"});
  // Whole on each rank: two layer norms, the biases of the row products, the positions and the last norm.
  constexpr uint64_t kWholeOfBlock = 4 * 16 + 2 * 16, kWholeOfRoot = 8 * 16 + 2 * 16;
  constexpr uint64_t kHeld = kWholeOfRoot + 256 * 16 / 2 + 2 * (kWholeOfBlock + (kBlock - kWholeOfBlock) / 2);
  EXPECT_EQ(plan.parameters, 4 * kHeld);
  EXPECT_EQ(plan.gradients, 4 * kHeld);
  EXPECT_EQ(plan.optimizer, 8 * kHeld);
  EXPECT_EQ(plan.activations, 4u * 2 * 8 * (2 * (4 * 16 + 12 * 8) + 2 * 16));
  EXPECT_EQ(plan.scores, 4u * 2 * 8 * 2 * 128);
}

TEST(PlanMemory, OfTensorRanksThatDivideTheSequence_DividesAllActivations) {
  const MemoryPlan plan = Plan({"parallel={tensor: 2, sequence: true}"}), whole = Plan({"parallel.tensor=2"});
  EXPECT_EQ(plan.parameters, whole.parameters);
  EXPECT_EQ(plan.scores, whole.scores);
  // Two blocks and the last norm; the head gathers its input.
  EXPECT_EQ(plan.activations, 4u * 2 * 8 * (2 * 16 * 8 + 2 * 8 + 16));
  const auto links = [](const char* sequence) {
    return PlanMemoryOfStages(Resolved({absl::StrCat("parallel={tensor: 2, pipeline: 2, sequence: ", sequence, "}"),
                                        "resources.ranks=4", "train.batch={global: 8, micro: 1}"}))[0]
        .links;
  };
  EXPECT_EQ(links("true"), links("false") / 2);
}

TEST(PlanMemory, OfAPipeline_DividesParametersAndGradientsAmongStages) {
  const std::vector<MemoryPlan> stages =
      PlanMemoryOfStages(Resolved({"parallel.pipeline=2", "train.batch={global: 8, micro: 1}"}));
  ASSERT_EQ(stages.size(), 2u);
  // Both stages have the tied embedding; the positions are in the first one, the last norm in the second one.
  EXPECT_EQ(stages[0].gradients, 4 * (256 * 16 + 8 * 16 + kBlock));
  EXPECT_EQ(stages[1].gradients, 4 * (256 * 16 + 2 * 16 + kBlock));
  EXPECT_EQ(stages[0].activations, 4u * 8 * (2 * 16 * 16)) << "two micro-batches in flight";
  EXPECT_EQ(stages[1].activations, 4u * 8 * (16 * 16 + 2 * 16)) << "one in flight, with the last norm";
  EXPECT_EQ(stages[0].scores, 0u);
  EXPECT_EQ(stages[1].scores, 4u * 8 * 2 * 256);
  EXPECT_EQ(stages[0].links, 4u * 2 * 8 * 16) << "one link, with two slots for gradients";
}

TEST(PlanMemory, OfGpipe_HoldsEveryMicroBatch) {
  const std::vector<MemoryPlan> stages = PlanMemoryOfStages(
      Resolved({"parallel.pipeline={stages: 2, schedule: gpipe}", "train.batch={global: 8, micro: 1}"}));
  EXPECT_EQ(stages[0].activations, 4u * 8 * (8 * 16 * 16));
}

// A model that needs one card of 24 GB, on four cards of 6 GB; and one with 45 GB of weights, on four cards of 40 GB.
TEST(PlanMemory, OfFourStages_FitsOnFourCardsWithAQuarterOfTheMemory) {
  const auto plan = [](int ranks, const char* sizes, const char* state) {
    return PlanMemory(Resolved({absl::StrCat("resources.ranks=", ranks), absl::StrCat("parallel.pipeline=", ranks),
                                absl::StrCat("train.model={", sizes, ", context: 1024, family: llama, tied: false}"),
                                "train.batch={global: 16, micro: 1}",
                                absl::StrCat("train.precision={state: ", state, "}"), "parallel.recompute=blocks"}));
  };
  constexpr uint64_t kGb = 1'000'000'000;
  constexpr char kSmall[] = "layers: 24, heads: 16, width: 2048", kLarge[] = "layers: 56, heads: 32, width: 4096";
  const MemoryPlan one = plan(1, kSmall, "fp32"), quarter = plan(4, kSmall, "fp32");
  EXPECT_GT(one.device_total(), 18 * kGb);
  EXPECT_LT(one.device_total(), 24 * kGb);
  EXPECT_LT(quarter.device_total(), 6 * kGb);

  const MemoryPlan whole = plan(1, kLarge, "fp32"), barely = plan(4, kLarge, "bf16");
  EXPECT_NEAR(static_cast<double>(whole.parameters), 45e9, 1e9);
  EXPECT_GT(whole.parameters, 40 * kGb) << "one card does not even hold the weights";
  EXPECT_LT(barely.device_total(), 40 * kGb);
  EXPECT_GT(barely.device_total(), 32 * kGb) << "gradients and optimizer state need most of it";
}

TEST(PlanMemory, OfALargeVocabulary_IsBoundedByTheChunk) {
  const std::vector<std::string> many = {"train.model.context=1024", "train.model.vocabulary=50257"};
  EXPECT_EQ(Plan(many).scores, 4u * 2 * (1u << 22));
}

TEST(PlanMemory, OfScoresOf16Bits_IsThatOfFp32_BecauseTheLossIsComputedInFp32) {
  EXPECT_EQ(Plan({"train.precision={param: bf16}"}).scores, Plan({"train.precision=bf16"}).scores);
}

// On a GPU, the gradient of a chunk's scores replaces the scores. Forward already computes the gradient of a tied head,
// which is stored until backward.
TEST(PlanMemory, OfALargeVocabularyOnAGpu_IsAChunkAndTheGradientOfTheHead) {
  const MemoryPlan plan = Plan({"train.model.context=1024", "train.model.vocabulary=50257", "train.model.width=768",
                                "train.batch.global=16", "train.batch.micro=16", "train.precision=bf16",
                                "resources.device=cuda", "resources.ranks=1"});
  EXPECT_EQ(plan.scores, 2u * (1u << 27) + 4u * 50257 * 768);
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
