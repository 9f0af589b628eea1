// Which divisions of ranks, models and batches among stages and tensor ranks are accepted, and how `auto` decides.
#include "spec/model_parallel_rules.h"

#include <gtest/gtest.h>

#include <map>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "spec/job_layout.h"
#include "spec/parallel_rules.h"
#include "spec/prepare.h"
#include "tests/unit/spec/sample_job.h"

namespace trainyard {
namespace {

// kGoodJob has 2 blocks of 2 heads; these jobs have 8 blocks of 4 heads, and steps of 32 sequences.
ReadJob ReadDivided(int ranks, const std::string& parallel, const std::vector<std::string>& overrides = {}) {
  return Read(absl::StrCat(absl::StrReplaceAll(kGoodJob, {{"ranks: 2", absl::StrCat("ranks: ", ranks)},
                                                          {"layers: 2", "layers: 8"},
                                                          {"heads: 2", "heads: 4"},
                                                          {"global: 8", "global: 32"}}),
                           "parallel: {", parallel, "}\n"),
              overrides);
}

struct ModelParallelRow {
  const char* name;
  int ranks;
  const char* parallel;
  const char* text;
  std::vector<std::string> overrides = {};
};
std::ostream& operator<<(std::ostream& out, const ModelParallelRow& row) { return out << row.name; }
std::string NameOfRow(const testing::TestParamInfo<ModelParallelRow>& info) { return info.param.name; }

class AcceptedDivisions : public testing::TestWithParam<ModelParallelRow> {};

TEST_P(AcceptedDivisions, HaveNoErrorAndNoWarning) {
  const ModelParallelRow& row = GetParam();

  const ReadJob read = ReadDivided(row.ranks, row.parallel, row.overrides);

  EXPECT_EQ(read.Errors(), "");
  EXPECT_EQ(read.Warnings(), "");
}

const ModelParallelRow kAccepted[] = {
    {"tensor", 2, "tensor: 2", ""},
    {"stages_as_a_number", 4, "pipeline: 4", ""},
    {"all_three_with_zero1", 8, "tensor: 2, pipeline: {stages: 2}, data: zero1, shard: 2", ""},
    {"interleaved_chunks", 2, "pipeline: {stages: 2, schedule: interleaved, chunks_per_rank: 4}", ""},
    {"interleaved_with_default_chunks", 2, "pipeline: {stages: 2, schedule: interleaved}", ""},
    {"split", 2, "pipeline: {stages: 2, split: [3, 5]}", ""},
    {"recompute_of_a_block_of_the_larger_stage", 2,
     "pipeline: {stages: 2, split: [3, 5]}, recompute: {mode: blocks, every: 5}", ""},
    {"fsdp_with_tensor", 4, "tensor: 2, data: fsdp", ""},
    {"zero1_with_offload_in_a_pipeline", 4, "pipeline: 2, data: zero1, offload: {optimizer: true}", ""},
    {"frozen_stage", 2, "pipeline: 2", "", {"train.freeze=['h.4.*', 'h.5.*', 'h.6.*', 'h.7.*', 'ln_f.*']"}},
    {"dropout_in_attention_on_cpus", 2, "tensor: 2", "", {"train.model.dropout=0.1", "resources.device=cpu"}},
};
INSTANTIATE_TEST_SUITE_P(, AcceptedDivisions, testing::ValuesIn(kAccepted), NameOfRow);

class RefusedDivisions : public testing::TestWithParam<ModelParallelRow> {};

TEST_P(RefusedDivisions, AreRefusedWithTheArithmeticAndAdvice) {
  const ModelParallelRow& row = GetParam();

  EXPECT_EQ(ReadDivided(row.ranks, row.parallel, row.overrides).Errors(), row.text);
}

const ModelParallelRow kRefusedRanks[] = {
    {"product", 6, "tensor: 2, pipeline: {stages: 2}, data: zero1, shard: 2",
     "job.yaml:16:42: parallel.pipeline.stages: stages 2 x tensor 2 x shard 2 = 8, but the job has 6 ranks; choose "
     "sizes whose product divides the number of ranks, or resources.ranks 8"},
    {"one_rank", 1, "pipeline: {stages: 4}",
     "job.yaml:16:31: parallel.pipeline.stages: stages 4, but the job has 1 rank; choose sizes whose product divides "
     "the number of ranks, or resources.ranks 4"},
    {"tensor_alone", 3, "tensor: 2",
     "job.yaml:16:20: parallel.tensor: tensor 2, but the job has 3 ranks; choose sizes whose product divides the "
     "number of ranks, or resources.ranks 2 or 4"},
    {"data_sizes", 8, "tensor: 2, data: hsdp, shard: 2, replicate: 3",
     "job.yaml:16:42: parallel.shard: tensor 2 x shard 2 x replicate 3 = 12, but the job has 8 ranks; choose sizes "
     "whose product is the number of ranks, or resources.ranks 12"},
    {"shard", 8, "tensor: 2, data: fsdp, shard: 3",
     "job.yaml:16:42: parallel.shard: is 3, which does not divide the job's 4 data ranks (tensor 2 x 4 = 8 ranks): 3 x "
     "1 = 3, 3 x 2 = 6; choose 1, 2, 4 or ranks 6 or 12"},
};
INSTANTIATE_TEST_SUITE_P(Ranks, RefusedDivisions, testing::ValuesIn(kRefusedRanks), NameOfRow);

const ModelParallelRow kRefusedModels[] = {
    {"heads", 8, "tensor: 8",
     "job.yaml:16:20: parallel.tensor: is 8, which does not divide the model's 4 attention heads; choose 1, 2, 4"},
    {"heads_of_keys_and_values",
     4,
     "tensor: 4",
     "job.yaml:16:20: parallel.tensor: is 4, which does not divide the model's 2 heads of keys and values; choose 1, 2",
     {"train.model.family=llama", "train.model.kv_heads=2"}},
    {"stages", 16, "pipeline: 16",
     "job.yaml:16:22: parallel.pipeline.stages: the model has 8 blocks, but a pipeline of 16 stages needs at least one "
     "in each; choose at most 8 stages"},
    {"chunks", 4, "pipeline: {stages: 4, schedule: interleaved, chunks_per_rank: 4}",
     "job.yaml:16:74: parallel.pipeline.chunks_per_rank: the model has 8 blocks, but a pipeline of stages 4 x "
     "chunks_per_rank 4 = 16 chunks needs at least one in each; choose at most 2 stages, or fewer chunks"},
    {"split_of_another_length", 2, "pipeline: {stages: 2, split: [8]}",
     "job.yaml:16:41: parallel.pipeline.split: expected 2 numbers above 0, one for each of 2 stages, with the sum 8, "
     "the number of blocks; found 8"},
    {"split_with_another_sum", 2, "pipeline: {stages: 2, split: [4, 5]}",
     "job.yaml:16:41: parallel.pipeline.split: expected 2 numbers above 0, one for each of 2 stages, with the sum 8, "
     "the number of blocks; found 4 + 5 = 9"},
    {"split_with_an_empty_stage", 2, "pipeline: {stages: 2, split: [0, 8]}",
     "job.yaml:16:41: parallel.pipeline.split: expected 2 numbers above 0, one for each of 2 stages, with the sum 8, "
     "the number of blocks; found 0 + 8 = 8, of which at least one is 0"},
    {"adapters",
     2,
     "tensor: 2",
     "job.yaml:16:20: parallel.tensor: is 2, but adapters (train.lora) cannot be divided among tensor ranks; choose 1, "
     "and parallel.pipeline or parallel.data to use several ranks",
     {"train.lora=4", "train.model.init_from=/w"}},
    {"dropout_in_attention_on_gpus",
     2,
     "tensor: 2",
     "job.yaml:16:20: parallel.tensor: is 2, which on a GPU cannot be combined with dropout in attention "
     "(train.model.dropout 0.1); choose dropout 0 or device cpu",
     {"train.model.dropout=0.1", "resources.device=cuda"}},
    {"more_tensor_ranks_than_hidden_units",
     4,
     "tensor: 4",
     "job.yaml:16:20: parallel.tensor: is 4, more than the 3 hidden units in an MLP; choose at most 3",
     {"train.model.family=llama", "train.model.inner=3"}},
};
INSTANTIATE_TEST_SUITE_P(Models, RefusedDivisions, testing::ValuesIn(kRefusedModels), NameOfRow);

const ModelParallelRow kRefusedSchedules[] = {
    {"interleaved_with_one_chunk", 2, "pipeline: {stages: 2, schedule: interleaved, chunks_per_rank: 1}",
     "job.yaml:16:74: parallel.pipeline.chunks_per_rank: is 1, but the schedule interleaved needs 2 or more chunks on "
     "each rank; with 1 it would be 1f1b"},
    {"chunks_of_1f1b", 2, "pipeline: {stages: 2, chunks_per_rank: 2}",
     "job.yaml:16:51: parallel.pipeline.chunks_per_rank: is 2, but the schedule 1f1b has 1 chunk on each rank; choose "
     "1, or the schedule interleaved"},
    {"interleaved_with_an_odd_number",
     4,
     "pipeline: {stages: 4, schedule: interleaved}",
     "job.yaml:12:12: train.batch.micro: gives each pipeline 23 micro-batches (2 x 23 x 1 = 46), but the schedule "
     "interleaved cannot take 23 micro-batches on 4 stages: 23 / 4, rounded down, gives 5 rounds, which do not divide "
     "23; use "
     "20 or 24 micro-batches",
     {"train.batch.global=46"}},
    {"micro_that_does_not_divide",
     8,
     "pipeline: {stages: 2}",
     "--set train.batch.micro=8: train.batch.micro: micro x micro-batches of a pipeline x data ranks must equal "
     "global, "
     "1020: 8 x 31 x 4 = 992, 8 x 32 x 4 = 1024; choose micro 4, 5, 6, 10 or global 992 or 1024",
     {"train.batch.micro=8", "train.batch.global=1020"}},
    {"unknown", 2, "pipeline: {stages: 2, schedule: 1f2b}",
     "job.yaml:16:44: parallel.pipeline.schedule: expected one of gpipe, 1f1b, interleaved, zero_bubble, simulated, "
     "found '1f2b'; did you mean '1f1b'?"},
    {"more_forward_passes_than_supported",
     8,
     "pipeline: 8",
     "--set train.batch.micro=1: train.batch.micro: a step would have 8 stages x 1 chunk x 16777216 micro-batches = "
     "134217728 forward passes in each pipeline, more than the 1048576 that this program supports; choose a larger "
     "micro-batch",
     {"train.batch.global=16777216", "train.batch.micro=1", "train.model.layers=1024"}},
};
INSTANTIATE_TEST_SUITE_P(Schedules, RefusedDivisions, testing::ValuesIn(kRefusedSchedules), NameOfRow);

const ModelParallelRow kRefusedCombinations[] = {
    {"full_files",
     2,
     "tensor: 2",
     "--set checkpoint={dir: /r, format: full, weights_copy: bf16}: checkpoint.format: is full, which is not supported "
     "with tensor parallelism yet; choose sharded, from which `trainctl checkpoint export` makes one file\n"
     "--set checkpoint={dir: /r, format: full, weights_copy: bf16}: checkpoint.weights_copy: is not supported with "
     "tensor parallelism yet; choose none",
     {"checkpoint={dir: /r, format: full, weights_copy: bf16}"}},
    {"different_files_on_stages",
     2,
     "pipeline: 2",
     "--set train.data.uneven=join: train.data.uneven: is join, but the ranks of a pipeline compute parts of the same "
     "samples, so all hosts need the same files; choose refuse",
     {"train.data.uneven=join"}},
    {"different_files_on_tensor_ranks",
     2,
     "tensor: 2",
     "--set train.data.uneven=join: train.data.uneven: is join, but the ranks of tensor parallelism compute parts of "
     "the same samples, so all hosts need the same files; choose refuse",
     {"train.data.uneven=join"}},
};
INSTANTIATE_TEST_SUITE_P(Combinations, RefusedDivisions, testing::ValuesIn(kRefusedCombinations), NameOfRow);

TEST(RefusedDivisions, AreReportedAllAtOnce) {
  EXPECT_EQ(ReadDivided(7, "tensor: 3, pipeline: {stages: 9, schedule: interleaved, chunks_per_rank: 1}, data: zero3")
                .Errors(),
            "job.yaml:16:20: parallel.tensor: is 3, which does not divide the model's 4 attention heads; choose 1, 2, "
            "4\n"
            "job.yaml:16:42: parallel.pipeline.stages: stages 9 x tensor 3 = 27, but the job has 7 ranks; choose sizes "
            "whose product divides the number of ranks, or resources.ranks 27\n"
            "job.yaml:16:42: parallel.pipeline.stages: the model has 8 blocks, but a pipeline of 9 stages needs at "
            "least one in each; choose at most 8 stages\n"
            "job.yaml:16:85: parallel.pipeline.chunks_per_rank: is 1, but the schedule interleaved needs 2 or more "
            "chunks on each rank; with 1 it would be 1f1b");
}

TEST(RefusedDivisions, AreRefusedThroughTheApiToo) {
  const ReadJob read = ReadDivided(6, "tensor: 2, pipeline: 2");

  const absl::Status status = PrepareJob(read.spec, {.job_id = "abcdefgh", .default_run_root = "/r"}).status();

  EXPECT_EQ(std::string(status.message()),
            "parallel.pipeline.stages: stages 2 x tensor 2 = 4, but the job has 6 ranks; choose sizes whose product "
            "divides the number of ranks, or resources.ranks 4 or 8");
}

class DivisionsWithWarnings : public testing::TestWithParam<ModelParallelRow> {};

TEST_P(DivisionsWithWarnings, SayWhatTheyCost) {
  const ModelParallelRow& row = GetParam();

  const ReadJob read = ReadDivided(row.ranks, row.parallel, row.overrides);

  EXPECT_EQ(read.Errors(), "");
  EXPECT_EQ(read.Warnings(), row.text);
}

const ModelParallelRow kWarnings[] = {
    {"schedule_of_one_stage", 2, "pipeline: {schedule: gpipe, chunks_per_rank: 2, split: [8]}",
     "job.yaml:16:33: warning: parallel.pipeline.schedule: has no effect: parallel.pipeline.stages is 1\n"
     "job.yaml:16:57: warning: parallel.pipeline.chunks_per_rank: has no effect: parallel.pipeline.stages is 1\n"
     "job.yaml:16:67: warning: parallel.pipeline.split: has no effect: parallel.pipeline.stages is 1"},
    {"fewer_micro_batches_than_stages",
     4,
     "pipeline: 4",
     "--set train.batch.micro=16: warning: train.batch.micro: each pipeline has 2 micro-batches for 4 stages, so a "
     "rank is idle for 60 % of a step; choose a smaller micro-batch or a larger global batch, for 16 or more "
     "micro-batches",
     {"train.batch.micro=16"}},
    {"uneven_micro_batches", 6, "pipeline: 2",
     "job.yaml:12:12: warning: train.batch.micro: global 32 / micro 2 = 16 micro-batches leave the 3 data ranks idle "
     "for 11 % of a step's computation (2 x 6 x 3 = 36, not 32); choose ranks 2, 4, 8, 16 or global 30 or 36"},
    {"zero2", 4, "pipeline: 2, data: zero2",
     "job.yaml:16:31: warning: parallel.data: zero2 saves memory in a pipeline only if the gradients are reduced after "
     "each micro-batch, which is not supported: during a step they are whole; zero1 needs the same memory and "
     "communicates less often"},
    {"fsdp", 4, "pipeline: 2, data: fsdp, reshard_after_forward: false",
     "job.yaml:16:31: warning: parallel.data: fsdp gathers the parameters of a stage once per step and keeps them "
     "until "
     "the update, so that between steps it saves as much memory as without a pipeline, and during a step no more than "
     "zero1\n"
     "job.yaml:16:60: warning: parallel.reshard_after_forward: has no effect: a pipeline keeps parameters gathered "
     "during a step"},
    {"limits_of_gathers", 4, "pipeline: 2, data: fsdp, prefetch_elements: 5, max_live_elements: 6, reuse_elements: 7",
     "job.yaml:16:31: warning: parallel.data: fsdp gathers the parameters of a stage once per step and keeps them "
     "until the update, so that between steps it saves as much memory as without a pipeline, and during a step no more "
     "than zero1"
     "\njob.yaml:16:56: warning: parallel.prefetch_elements: has no effect: a pipeline keeps parameters gathered "
     "during a step"
     "\njob.yaml:16:78: warning: parallel.max_live_elements: has no effect: a pipeline keeps parameters gathered "
     "during a step"
     "\njob.yaml:16:97: warning: parallel.reuse_elements: has no effect: a pipeline keeps parameters gathered during a "
     "step"},
    {"reduction_of_each_micro_batch", 4, "pipeline: 2, data: zero2, reduce_every_micro_batch: true",
     "job.yaml:16:31: warning: parallel.data: zero2 saves memory in a pipeline only if the gradients are reduced after "
     "each micro-batch, which is not supported: during a step they are whole; zero1 needs the same memory and "
     "communicates less often\n"
     "job.yaml:16:64: warning: parallel.reduce_every_micro_batch: has no effect: the gradients of a pipeline are "
     "reduced "
     "once per step"},
    {"recompute_of_no_block_of_a_stage", 4, "pipeline: 4, recompute: {mode: blocks, every: 4}",
     "job.yaml:16:58: warning: parallel.recompute.every: is 4, but a stage of the pipeline has at most 2 blocks, so "
     "none is recomputed; choose 1 to 2"},
    {"sequence_of_one_tensor_rank", 2, "sequence: true",
     "job.yaml:16:22: warning: parallel.sequence: has no effect: parallel.tensor is 1, and only tensor ranks divide "
     "the "
     "sequence"},
    {"one_data_rank", 2, "tensor: 2, overlap: false",
     "job.yaml:16:32: warning: parallel.overlap: has no effect: a job of one data rank reduces nothing"},
};
INSTANTIATE_TEST_SUITE_P(, DivisionsWithWarnings, testing::ValuesIn(kWarnings), NameOfRow);

TEST(BatchArithmetic, OfFourPipelinesOf32MicroBatchesOf8_Is1024) {
  const DealShape deal = DealShapeOf(/*global=*/1024, /*micro=*/8, /*data_ranks=*/4);

  EXPECT_EQ(BatchProduct(8, deal.rounds, 4), "8 x 32 x 4 = 1024");
  EXPECT_EQ(1024u / 4, 256u) << "sequences of each pipeline";
  EXPECT_EQ(256u / deal.rounds, 8u) << "sequences of a micro-batch";
  EXPECT_EQ(deal.rounds, 32u);
  EXPECT_EQ(deal.idle, 0u);
}

TEST(AutoMicro, OfAPipeline_AimsAtFourMicroBatchesForEachStage) {
  EXPECT_EQ(AutoMicro(1024, 4, {.rounds = 4 * 8}), 8u);
  EXPECT_EQ(AutoMicro(32, 1, {.rounds = 8}), 4u);
  EXPECT_EQ(AutoMicro(6, 1, {.rounds = 8}), 1u) << "6 sequences give at most 6 micro-batches";
  EXPECT_EQ(AutoMicro(48, 1, {.rounds = 16, .multiple = 4}), 3u);
  EXPECT_EQ(AutoMicro(36, 1, {.rounds = 16, .multiple = 4}), 1u)
      << "the number of micro-batches must be a multiple of 4: 18 is not, 36 is";
}

TEST(Layout, OfEightRanks_IsThatOfTheMesh) {
  const JobLayout layout{.ranks = 8, .stages = 2, .tensor = 2};

  EXPECT_EQ(layout.data_ranks(), 2u);
  EXPECT_EQ(layout.StageOf(5), 1u);
  EXPECT_EQ(layout.DataRankOf(5), 0u);
  EXPECT_EQ(layout.DataRankOf(6), 1u);
  EXPECT_EQ(layout.TensorRankOf(5), 1u);
}

TEST(Bubble, FollowsTheFormulas_AndIsLargerWithUnequalStages) {
  const PipelineShape shape{.stages = 4, .chunks_per_rank = 1, .micro_batches = 8};
  const PipelineShape chunks{.stages = 4, .chunks_per_rank = 2, .micro_batches = 8};

  EXPECT_NEAR(EstimatePipeline(ScheduleKind::kGpipe, shape).bubble, 3.0 / 11, 1e-12);
  EXPECT_NEAR(EstimatePipeline(ScheduleKind::kOneForwardOneBackward, shape).bubble, 3.0 / 11, 1e-12);
  EXPECT_NEAR(EstimatePipeline(ScheduleKind::kInterleaved, chunks).bubble, 3.0 / 19, 1e-12);
  EXPECT_GT(EstimatePipeline(ScheduleKind::kGpipe, shape, {2, 2, 2, 3}).bubble, 3.0 / 11);
  EXPECT_NEAR(
      EstimatePipeline(ScheduleKind::kGpipe, {.stages = 4, .chunks_per_rank = 1, .micro_batches = 100'000}).bubble,
      3.0 / 100'003, 1e-12)
      << "a step with very many actions is not simulated: its bubble is that of the formula";
}

TEST(Resolved, PipelinesHaveTheirChunks_TheirMicroBatch_AndDataSizes) {
  const ReadJob read = ReadDivided(8, "tensor: 2, pipeline: {stages: 2, schedule: interleaved}, data: zero1",
                                   {"train.batch.micro=auto"});
  EXPECT_EQ(read.Errors(), "");

  const auto job = PrepareJob(read.spec, {.job_id = "abcdefgh", .default_run_root = "/r"});

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.parallel().pipeline().chunks_per_rank(), 2u);
  EXPECT_EQ(job->spec.parallel().shard(), 2u);
  EXPECT_EQ(job->spec.train().batch().micro(), 2u);
  std::map<std::string, std::string> reasons;
  for (const v1::ResolvedKey& decision : job->decisions) reasons[decision.key()] = decision.reason();
  EXPECT_EQ(reasons["train.batch.micro"],
            "the largest that reaches the goal of 8 micro-batches (4 for each stage) in a pipeline: 2 x 8 x 2 = 32; "
            "bubble 5.9 %");
  EXPECT_EQ(reasons["parallel.shard"], "shard 2 x replicate 1 = 2 data ranks");
  EXPECT_EQ(reasons["parallel.pipeline.chunks_per_rank"], "the default of the schedule interleaved");
  const auto again = PrepareJob(job->spec, {.job_id = "zzzzzzzz", .default_run_root = "/elsewhere"});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->digest, job->digest);
}

TEST(Resolved, JobsWithOneStage_DoNotDependOnKeysOfPipelines) {
  const auto digest = [](const char* parallel) {
    const auto job = PrepareJob(ReadDivided(2, parallel).spec, {.job_id = "abcdefgh", .default_run_root = "/r"});
    return job.ok() ? job->digest : std::string(job.status().message());
  };

  EXPECT_EQ(digest("pipeline: {stages: 1, schedule: gpipe, chunks_per_rank: 2, split: [8]}"), digest("tensor: 1"));
}

TEST(Resolved, DropoutInAttentionOfTensorRanks_DecidesForTheCpu) {
  const auto job = PrepareJob(ReadDivided(2, "tensor: 2", {"train.model.dropout=0.1"}).spec,
                              {.job_id = "abcdefgh", .default_run_root = "/r"});

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.resources().device(), v1::DEVICE_CPU);
}

}  // namespace
}  // namespace trainyard
