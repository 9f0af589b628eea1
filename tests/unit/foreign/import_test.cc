// Importing configuration files of Accelerate, DeepSpeed and transformers: which of them a file belongs to, what is
// refused with which message, and the job file that an import writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "tests/unit/foreign/imported.h"

namespace trainyard::foreign {
namespace {

using testing::HasSubstr;

constexpr char kZero2[] = R"({"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}})";

std::string ErrorsOf(const std::string& file, const std::vector<std::string>& flags = {}) {
  return Import(file, RequiredFlagsAnd(flags)).Errors();
}

TEST(DialectTest, IsKnownByTheKeys) {
  EXPECT_EQ(DialectOf("distributed_type: FSDP\nnum_processes: 2\n"), Dialect::kAccelerate);
  EXPECT_EQ(DialectOf(kZero2), Dialect::kDeepSpeed);
  EXPECT_EQ(DialectOf("{\n\t\"zero_optimization\":\t{\"stage\": 1}\n}"), Dialect::kDeepSpeed);
  EXPECT_EQ(DialectOf(R"({"fsdp": true, "fsdp_config": {}})"), Dialect::kTrainingArguments);
  EXPECT_EQ(DialectOf(R"({"fsdp_version": 2, "fsdp_offload_params": true})"), Dialect::kFsdpConfig);
  EXPECT_EQ(DialectOf("name: tiny\ntrain: {steps: 1}\n"), absl::nullopt);
  EXPECT_EQ(DialectOf("checkpoint: {keep: 1}\n"), absl::nullopt);
  EXPECT_EQ(DialectOf("colour: blue\n"), absl::nullopt);
  EXPECT_EQ(DialectOf("{not: [closed"), absl::nullopt);
}

TEST(DialectTest, AFileOfAnUnknownKindIsExplained) {
  EXPECT_THAT(WhyNeither("colour: blue\n"),
              testing::AllOf(HasSubstr("neither a job file"), HasSubstr("Accelerate"), HasSubstr("DeepSpeed")));
  EXPECT_EQ(WhyNeither("name: tiny\n"), "");
  EXPECT_EQ(WhyNeither(kZero2), "");
  EXPECT_EQ(WhyNeither("{not: [closed"), "");
}

TEST(ImportTest, UnknownKeysAreErrorsWithTheirPlaceAndTheNearestKey) {
  EXPECT_THAT(ErrorsOf("distributed_type: FSDP\nnum_proceses: 2\n"),
              HasSubstr("their.file:2:1: Accelerate has no key 'num_proceses'; did you mean 'num_processes'?"));
  EXPECT_THAT(
      ErrorsOf("distributed_type: FSDP\nfsdp_config:\n  fsdp_reshard_after_foward: true\n"),
      HasSubstr("their.file:3:3: fsdp_config: Accelerate has no key 'fsdp_reshard_after_foward' here; did you mean "
                "'reshard_after_forward'?"));
  EXPECT_THAT(ErrorsOf(R"({"zero_optimization": {"stage": 2, "offload_param": {"devise": "cpu"}}})"),
              HasSubstr("zero_optimization.offload_param: DeepSpeed has no key 'devise' here; did you mean 'device'?"));
}

TEST(ImportTest, ValuesOfAWrongFormAreErrors) {
  EXPECT_THAT(ErrorsOf(R"({"gradient_clipping": "much", "train_batch_size": 8})"),
              HasSubstr("gradient_clipping: expected a number or auto, found much"));
  EXPECT_THAT(ErrorsOf(R"({"train_batch_size": 8.5})"), HasSubstr("expected a whole number or auto, found 8.5"));
  EXPECT_THAT(ErrorsOf(R"({"zero_optimization": {"stage": "auto"}})"),
              HasSubstr("found auto, which this key cannot be"));
  EXPECT_THAT(ErrorsOf("distributed_type: FSDP\nmixed_precision: auto\n"),
              HasSubstr("expected one of no, fp16, bf16, fp8, found auto"));
  EXPECT_THAT(ErrorsOf("distributed_type: FSPD\nnum_processes: 2\n"), HasSubstr("expected one of NO, MULTI_CPU"));
  EXPECT_THAT(ErrorsOf(R"({"zero_optimization": true, "train_batch_size": 8})"),
              HasSubstr("expected a map, found true"));
  EXPECT_THAT(ErrorsOf(R"({"train_batch_size": 8, "train_batch_size": 9})"), HasSubstr("is given twice"));
  EXPECT_THAT(ErrorsOf(R"({"train_batch_size": 8, "gradient_clipping": -1})"),
              HasSubstr("gradient_clipping: becomes train.optimizer.clip_norm, which must be from 0"));
}

TEST(ImportTest, WhatTrainyardDoesNotHaveIsRefusedByName) {
  EXPECT_THAT(
      ErrorsOf("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: MULTI_GPU\n"),
      HasSubstr("their.file:1:1: compute_environment: AMAZON_SAGEMAKER is not available: Trainyard runs on hosts "
                "with its worker daemon; use LOCAL_MACHINE"));
  EXPECT_THAT(ErrorsOf("distributed_type: XLA\nnum_processes: 2\n"), HasSubstr("XLA is not available"));
  EXPECT_THAT(ErrorsOf("distributed_type: FSDP\nmixed_precision: fp8\n"), HasSubstr("fp8 is not available"));
  EXPECT_THAT(ErrorsOf(R"({"optimizer": {"type": "Lamb"}})"),
              HasSubstr("the optimizer Lamb is not available; use AdamW"));
  EXPECT_THAT(ErrorsOf(R"({"scheduler": {"type": "OneCycle"}})"), HasSubstr("the schedule OneCycle is not available"));
  EXPECT_THAT(ErrorsOf(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "log"}}})"),
              HasSubstr("warmup_type: log is not available: the rate rises linearly; use linear"));
  EXPECT_THAT(ErrorsOf(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})"),
              HasSubstr("nvme is not available"));
  EXPECT_THAT(ErrorsOf(R"({"zero_optimization": {"stage": 4}})"), HasSubstr("expected 0, 1, 2 or 3, found 4"));
  EXPECT_THAT(ErrorsOf(R"({"elasticity": {"enabled": true}, "train_batch_size": 8})"), HasSubstr("elasticity"));
  EXPECT_EQ(ErrorsOf(R"({"elasticity": {"enabled": false}, "train_batch_size": 8})"), "");
}

// The batch of the job would be larger than theirs by the number of ranks.
TEST(ImportTest, ABatchThatIsSplitAmongTheRanksIsRefused) {
  EXPECT_THAT(
      ErrorsOf(R"({"fsdp": true, "per_device_train_batch_size": 8, "accelerator_config": {"split_batches": true}})"),
      HasSubstr("accelerator_config.split_batches: true is not available: per_device_train_batch_size would be "
                "the batch of all ranks"));
  EXPECT_EQ(
      ErrorsOf(R"({"fsdp": true, "per_device_train_batch_size": 8, "accelerator_config": {"split_batches": false}})"),
      "");
}

TEST(ImportTest, ContradictionsAreRefused) {
  EXPECT_THAT(
      ErrorsOf("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_offload_params: true, "
               "fsdp_cpu_offload: false}\n"),
      HasSubstr("asks for parallel.offload.parameters: false, but fsdp_config.fsdp_offload_params asks for true"));
  EXPECT_THAT(ErrorsOf(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"),
              HasSubstr("bf16.enabled: asks for train.precision.type: bf16, but fp16.enabled asks for fp16"));
  EXPECT_THAT(ErrorsOf("distributed_type: MULTI_GPU\nnum_processes: 2\nfsdp_config: {fsdp_version: 2}\n"),
              HasSubstr("fsdp_config: has no effect, because distributed_type is MULTI_GPU"));
  EXPECT_THAT(ErrorsOf("distributed_type: 'NO'\nnum_processes: 2\n"), HasSubstr("distributed_type is NO"));
  EXPECT_THAT(ErrorsOf("distributed_type: MULTI_CPU\nnum_processes: 3\nnum_machines: 2\n"),
              HasSubstr("not a multiple of num_machines, 2"));
  EXPECT_THAT(ErrorsOf("distributed_type: MULTI_CPU\nnum_processes: 4\nnum_machines: 2\nmachine_rank: 2\n"),
              HasSubstr("machine_rank: must be from 0 to 1"));
  EXPECT_THAT(ErrorsOf("distributed_type: FSDP\nnum_processes: 4\nfsdp_config: {fsdp_version: 2}\nparallelism_config: "
                       "{parallelism_config_dp_shard_size: 3}\n"),
              HasSubstr("dp_replicate_size 1 x dp_shard_size 3 x tp_size 1 = 3, but the job has 4 ranks"));
}

TEST(ImportTest, AClassOfAnotherFamilyIsRefusedWithTheRightOne) {
  const std::string file =
      "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_transformer_layer_cls_to_wrap: "
      "LlamaDecoderLayer}\n";

  EXPECT_THAT(ErrorsOf(file), HasSubstr("the model is of the family gpt2, whose block is GPT2Block"));
  EXPECT_THAT(ErrorsOf("distributed_type: FSDP\nfsdp_config: {fsdp_transformer_layer_cls_to_wrap: T5Block}\n"),
              HasSubstr("the classes are GPT2Block, LlamaDecoderLayer, MistralDecoderLayer, Qwen2DecoderLayer"));
}

TEST(ImportTest, FlagsReplaceValuesOfTheFileAndANoteSaysSo) {
  const Imported imported = Import(kZero2, RequiredFlagsAnd({"parallel.data=zero3"}));

  EXPECT_EQ(imported.Errors(), "");
  EXPECT_EQ(imported.job.spec.parallel().data(), v1::DATA_PARALLEL_ZERO3);
  EXPECT_THAT(imported.Notes(),
              HasSubstr("--set parallel.data=zero3 replaces zero2, which zero_optimization.stage asks for"));
}

TEST(ImportTest, AnOptimizerWithoutATypeIsAnErrorAndEmptySectionsAreAccepted) {
  const Imported imported = Import(
      R"({"train_batch_size": 8, "optimizer": {"params": {"lr": 1}}, "scheduler": {"params": {"cos_min_ratio": 1}}})",
      RequiredFlags());

  EXPECT_THAT(imported.Errors(), HasSubstr("optimizer: has no type"));
  EXPECT_EQ(imported.Became("optimizer.params.lr"), "not decided, because of the errors in the file");
  EXPECT_THAT(Import("distributed_type: MULTI_CPU\nnum_processes: 2\nmegatron_lm_config: {}\nfsdp_config: null\n",
                     RequiredFlagsAnd({"train.batch.global=8"}))
                  .Errors(),
              "");
}

TEST(ImportTest, MissingKeysAreErrorsThatSayHowToGiveThem) {
  const Imported imported = Import(kZero2, {});

  EXPECT_THAT(imported.Errors(), HasSubstr("train.steps: is required; expected a whole number from 1 to 1000000000000; "
                                           "add --set train.steps=VALUE"));
  EXPECT_THAT(imported.job.missing, testing::IsSupersetOf({"train.steps", "train.data"}));
}

TEST(ImportTest, ADeepSpeedFileThatAccelerateNamesIsReadToo) {
  const std::string file =
      "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {deepspeed_config_file: ds.json, "
      "zero3_init_flag: true}\n";
  const auto read = [](const std::string& path) -> absl::StatusOr<std::string> {
    if (path != "ds.json") return absl::NotFoundError("no such file");
    return std::string(kZero2);
  };

  const Imported imported = Import(file, RequiredFlags(), read);

  EXPECT_EQ(imported.Errors(), "");
  EXPECT_EQ(imported.job.spec.parallel().data(), v1::DATA_PARALLEL_ZERO2);
  EXPECT_EQ(imported.job.spec.resources().ranks(), 2u);
  EXPECT_EQ(imported.job.spec.train().batch().micro(), 4u);
}

TEST(ImportTest, DefaultsOfTransformersAreAnnounced) {
  const std::string file = R"({"fsdp": true, "learning_rate": 1e-4, "save_steps": 5})";

  const Imported imported = Import(file, RequiredFlagsAnd({"train.schedule.kind=wsd"}));

  EXPECT_THAT(imported.Notes(), HasSubstr("train.optimizer.weight_decay is 0: the default of transformers, because the "
                                          "file has a learning_rate without it"));
  EXPECT_THAT(imported.Notes(), HasSubstr("checkpoint.keep is 0: transformers keeps all checkpoints without "
                                          "save_total_limit"));
  EXPECT_EQ(imported.job.spec.train().schedule().kind(), v1::SCHEDULE_KIND_WSD);
  EXPECT_FALSE(imported.job.spec.train().schedule().has_formula()) << "the schedule is that of --set";
}

TEST(ImportTest, HybridShardingWithZero2KeepsTheParametersAfterForward) {
  const std::vector<std::string> flags = RequiredFlagsAnd({"parallel.shard=2"});

  EXPECT_EQ(Import(R"({"fsdp": "hybrid_shard"})", flags).Became("fsdp"), "parallel.data=hsdp");
  EXPECT_EQ(Import(R"({"fsdp": "hybrid_shard_zero2"})", flags).Became("fsdp"),
            "parallel.data=hsdp parallel.reshard_after_forward=false");
}

TEST(ImportTest, AFileThatFsdpConfigNamesIsReadToo) {
  const auto read = [](const std::string& path) -> absl::StatusOr<std::string> {
    if (path != "fsdp.json") return absl::NotFoundError(absl::StrCat(path, " does not exist"));
    return std::string(R"({"fsdp_version": 2, "reshard_after_forward": false, "fsdp_colour": 1})");
  };

  const Imported imported = Import(R"({"fsdp": true, "fsdp_config": "fsdp.json"})", RequiredFlags(), read);

  EXPECT_EQ(imported.job.spec.parallel().data(), v1::DATA_PARALLEL_FSDP);
  EXPECT_EQ(imported.Became("reshard_after_forward"), "parallel.data=fsdp parallel.reshard_after_forward=false");
  EXPECT_THAT(imported.Errors(),
              HasSubstr("fsdp.json:1:53: transformers' fsdp_config has no key 'fsdp_colour' here. Valid here: "));
  EXPECT_THAT(Import(R"({"fsdp": true, "fsdp_config": "other.json"})", RequiredFlags(), read).Errors(),
              HasSubstr("their.file:1:16: fsdp_config: other.json does not exist"));
}

TEST(ImportTest, PathsAreTakenAsTheyAre_HoweverLong_AndEvenIfYamlReadsThemDifferently) {
  const std::string folder = absl::StrCat("/data/", std::string(100, 'a'));
  for (const std::string& path :
       {folder, std::string("/data/run #1"), std::string("/data/a: b"), std::string("auto")}) {
    const Imported imported = Import(absl::StrCat(R"({"fsdp": true, "output_dir": ")", path, R"("})"), RequiredFlags());
    EXPECT_EQ(imported.job.spec.checkpoint().dir(), path == "auto" ? "/work/auto" : path);
  }
  const std::string named = absl::StrCat(folder, "/ds.json");
  const auto read = [&named](const std::string& path) -> absl::StatusOr<std::string> {
    if (path != named) return absl::NotFoundError(absl::StrCat(path, " does not exist"));
    return std::string(kZero2);
  };

  const Imported imported = Import(
      absl::StrCat("distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {deepspeed_config_file: ", named,
                   "}\n"),
      RequiredFlags(), read);

  EXPECT_EQ(imported.Errors(), "");
  EXPECT_EQ(imported.job.spec.parallel().data(), v1::DATA_PARALLEL_ZERO2);
}

TEST(JobTextTest, ACompleteJobIsReadAsWritten) {
  const Imported imported = Import(kZero2, RequiredFlagsAnd({"resources.ranks=2"}));
  const std::string text = JobText(imported.job, "zero2.json");
  Problems problems;

  const v1::JobSpec read =
      ReadJobFile({.text = text, .file_name = "job.yaml", .working_directory = "/work", .overrides = {}}, &problems);

  EXPECT_TRUE(problems.ok()) << problems.ToStatus() << text;
  EXPECT_EQ(WriteYaml(read), WriteYaml(imported.complete));
  EXPECT_THAT(text, HasSubstr("#   parallel.data is from zero_optimization.stage"));
}

TEST(JobTextTest, AJobWithMissingKeysMarksThemAndDoesNotValidate) {
  const Imported imported = Import(kZero2, {});
  const std::string text = JobText(imported.job, "zero2.json");
  Problems problems;

  ReadJobFile({.text = text, .file_name = "job.yaml", .working_directory = "/work", .overrides = {}}, &problems);

  EXPECT_THAT(text, testing::AllOf(HasSubstr("  # REQUIRED: model: {preset"), HasSubstr("  # REQUIRED: steps: 1000"),
                                   HasSubstr("  # REQUIRED: data: ")));
  EXPECT_THAT(std::string(problems.ToStatus().message()), HasSubstr("train.steps: is required"));
}

}  // namespace
}  // namespace trainyard::foreign
