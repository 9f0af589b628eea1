// Families, presets and config.json in a job file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/strict_yaml.h"
#include "models/hugging_face_config.h"
#include "models/presets.h"
#include "spec/model_sizes.h"
#include "spec/prepare.h"
#include "tests/unit/spec/sample_job.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const ModelSizes kLlamaSizes = CompleteLlamaSizes({.family = ModelFamily::kLlama,
                                                   .layers = 2,
                                                   .heads = 4,
                                                   .width = 16,
                                                   .context = 4096,
                                                   .vocabulary = 300,
                                                   .kv_heads = 2,
                                                   .inner = 40,
                                                   .tied = false,
                                                   .rope = {.theta = 5e5}});

std::string WithSizes(const std::string& keys) {
  return absl::StrReplaceAll(kGoodJob, {{"    layers: 2\n    heads: 2\n    width: 16\n    context: 8\n", keys}});
}

ReadJob ReadWithConfig(const std::string& text, const std::string& config) {
  ReadJob read;
  read.spec = ReadJobFile({.text = text,
                           .file_name = "job.yaml",
                           .working_directory = "/home/ada",
                           .read_config = [&](const std::string&) { return config; },
                           .overrides = {}},
                          &read.problems);
  return read;
}

absl::StatusOr<PreparedJob> PrepareSpec(const v1::JobSpec& spec) {
  return PrepareJob(spec, {.job_id = "abcdefgh", .default_run_root = "/runs"});
}

std::map<std::string, std::string> DecisionsOf(const PreparedJob& job) {
  std::map<std::string, std::string> decisions;
  for (const v1::ResolvedKey& decision : job.decisions) decisions[decision.key()] = decision.value();
  return decisions;
}

TEST(ModelSizesOfJobs, SizesOfEveryPreset_RoundTrip) {
  for (const ModelPreset& preset : ModelPresets()) {
    v1::Model model;
    SetModelSizes(preset.sizes, model);
    EXPECT_EQ(SizesOfModel(model), preset.sizes) << preset.name;
    EXPECT_TRUE(CheckSizes(preset.sizes).ok()) << preset.name << CheckSizes(preset.sizes);
  }
}

TEST(ModelSizesOfJobs, EveryPreset_MakesAValidJob) {
  for (const ModelPreset& preset : ModelPresets()) {
    ReadJob read = Read(WithSizes(absl::StrCat("    preset: ", preset.name, "\n")));
    EXPECT_EQ(read.Errors(), "") << preset.name;
    ASSERT_TRUE(PrepareSpec(read.spec).ok()) << preset.name;
    ModelSizes sizes = SizesOfModel(PrepareSpec(read.spec)->spec.train().model());
    EXPECT_EQ(sizes, preset.sizes) << preset.name;
  }
}

TEST(ModelSizesOfJobs, KeysThatTheFamilyDecides_AreListed) {
  ReadJob read = Read(WithSizes("    family: qwen2\n    layers: 2\n    heads: 4\n    width: 64\n    context: 8\n"));

  auto job = PrepareSpec(read.spec);

  ASSERT_TRUE(job.ok()) << job.status();
  std::map<std::string, std::string> decisions = DecisionsOf(*job);
  EXPECT_EQ(decisions["train.model.kv_heads"], "4");
  EXPECT_EQ(decisions["train.model.head_width"], "16");
  EXPECT_EQ(decisions["train.model.inner"], "256");
  EXPECT_EQ(decisions["train.model.norm_eps"], "1e-06");
  EXPECT_EQ(decisions["train.model.tied"], "false");
  EXPECT_EQ(decisions["train.model.attention_bias"], "qkv");
  EXPECT_EQ(decisions["train.model.mlp_bias"], "false");
  EXPECT_EQ(decisions["train.model.rope.theta"], "10000");
  EXPECT_EQ(decisions["train.model.rope.scaling"], "none");
  EXPECT_EQ(decisions["train.model.window"], "0");
}

TEST(ModelSizesOfJobs, KeysThatGpt2DoesNotHave_CauseWarningsAndAreRemoved) {
  ReadJob read = Read(absl::StrReplaceAll(kGoodJob, {{"heads: 2", "heads: 2\n    kv_heads: 1\n    rope: {theta: 5}"}}));

  EXPECT_THAT(read.Warnings(), AllOf(HasSubstr("train.model.kv_heads: has no effect: the family gpt2"),
                                     HasSubstr("train.model.rope: has no effect: the family gpt2")));
  auto job = PrepareSpec(read.spec);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_FALSE(job->spec.train().model().has_kv_heads());
  EXPECT_FALSE(job->spec.train().model().has_rope());
  EXPECT_EQ(job->digest, PrepareSpec(Read(kGoodJob).spec)->digest);
}

TEST(ModelConfig, DecidesTheSizesAndNamesTheWeights) {
  ReadJob read = ReadWithConfig(WithSizes("    path: models/x\n"), HuggingFaceConfig(kLlamaSizes, "BF16"));

  EXPECT_EQ(read.Errors(), "");
  auto job = PrepareSpec(read.spec);

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(SizesOfModel(job->spec.train().model()), kLlamaSizes);
  EXPECT_EQ(job->spec.train().model().init_from(), "/home/ada/models/x");
  EXPECT_EQ(job->spec.train().data().tokenizer_path(), "/home/ada/models/x");
  EXPECT_EQ(SequenceLength(job->spec.train()), kAutoLengthMax);
  std::map<std::string, std::string> decisions = DecisionsOf(*job);
  EXPECT_THAT(decisions["train.model"], HasSubstr("a llama of 2 layers, width 16, context 4096"));
  EXPECT_EQ(decisions["train.batch.length"], "2048");
  EXPECT_EQ(decisions.count("train.model.inner"), 0u);
  // The resolved spec, read again, is valid and the same.
  EXPECT_EQ(PrepareSpec(job->spec)->bytes, job->bytes);
}

TEST(ModelConfig, TheTokenizerIsThatOfTheFolder_UnlessTheJobNamesOne) {
  const std::string config = HuggingFaceConfig(kLlamaSizes, "F32");
  v1::JobSpec spec = ReadWithConfig(WithSizes("    path: /m\n"), config).spec;
  v1::Data& data = *spec.mutable_train()->mutable_data();

  EXPECT_EQ(PrepareSpec(spec)->spec.train().data().tokenizer_path(), "/m");
  data.set_tokenizer_path("/other/tokenizer.json");
  EXPECT_EQ(PrepareSpec(spec)->spec.train().data().tokenizer_path(), "/other/tokenizer.json");
  data.clear_tokenizer_path();
  data.set_tokenizer(v1::TOKENIZER_BYTES);
  EXPECT_FALSE(PrepareSpec(spec)->spec.train().data().has_tokenizer_path());
}

TEST(ModelConfig, KeysThatAreGiven_MustAgree) {
  const std::string config = HuggingFaceConfig(kLlamaSizes, "F32");

  EXPECT_EQ(ReadWithConfig(WithSizes("    path: /m\n    heads: 4\n    context: 64\n"), config).Errors(), "");
  ReadJob other = ReadWithConfig(
      WithSizes("    path: /m\n    family: qwen2\n    heads: 8\n    context: 8192\n    rope: {theta: 7}\n"), config);
  EXPECT_THAT(other.Errors(),
              AllOf(HasSubstr("train.model.family: is qwen2, but /m/config.json says llama; remove the key"),
                    HasSubstr("train.model.heads: is 8, but /m/config.json says 4"),
                    HasSubstr("train.model.context: is 8192, but /m/config.json says 4096 at most"),
                    HasSubstr("train.model.rope.theta: is 7, but /m/config.json says 5e+05")));
  EXPECT_THAT(ReadWithConfig(WithSizes("    path: /m\n    preset: gpt2\n"), config).Errors(),
              HasSubstr("train.model.preset: gives sizes, but config.json of train.model.path decides them"));
}

TEST(ModelConfig, DropoutOfGpt2_MayDiffer) {
  const ModelSizes sizes{.layers = 1, .heads = 2, .width = 4, .context = 8, .vocabulary = 256, .dropout = 0.1};
  const std::string config = HuggingFaceConfig(sizes, "F32");

  EXPECT_EQ(ReadWithConfig(WithSizes("    path: /m\n"), config).spec.train().model().dropout(), 0.1);
  ReadJob read = ReadWithConfig(WithSizes("    path: /m\n    dropout: 0\n"), config);
  EXPECT_EQ(read.Errors(), "");
  EXPECT_EQ(read.spec.train().model().dropout(), 0);
  EXPECT_THAT(ReadWithConfig(WithSizes("    path: /m\n    context: 4\n"), config).Errors(),
              HasSubstr("train.model.context: is 4, but /m/config.json says 8; remove the key"));
}

TEST(ModelConfig, ThatCannotBeTrained_IsOneProblem) {
  nlohmann::json config = nlohmann::json::parse(HuggingFaceConfig(kLlamaSizes, "F32"));
  config["model_type"] = "lama";

  EXPECT_EQ(
      ReadWithConfig(WithSizes("    path: /m\n"), config.dump(2)).Errors(),
      "job.yaml:4:11: train.model.path: /m/config.json describes a model that cannot be trained here: model_type: "
      "expected one of \"gpt2\", \"llama\", \"mistral\", \"qwen2\" (the nearest is \"llama\", but its architecture "
      "may differ), found \"lama\"");
  EXPECT_EQ(ReadWithConfig(WithSizes("    path: /m\n"), "[1").Errors(),
            "job.yaml:4:11: train.model.path: /m/config.json is not a JSON object");
  EXPECT_THAT(ReadWithConfig(WithSizes("    path: /m\n"), std::string(70000, ' ')).Errors(),
              HasSubstr("train.model.config: is 70000 bytes long; at most 65536 are accepted"));
}

}  // namespace
}  // namespace trainyard
