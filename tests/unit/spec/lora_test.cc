// train.lora in a job file, and adapter_config.json of PEFT.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/adapter_config.h"
#include "models/lora_targets.h"
#include "models/model_description.h"
#include "spec/memory_plan.h"
#include "spec/model_sizes.h"
#include "spec/prepare.h"
#include "tests/unit/spec/sample_job.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kWithWeights = "train.model.init_from=base";

ReadJob ReadLora(const std::string& lora, std::vector<std::string> others = {kWithWeights}) {
  others.push_back(absl::StrCat("train.lora=", lora));
  return Read(kGoodJob, others);
}

constexpr char kAdapterConfig[] =
    R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["c_proj", "c_attn"]})";

ReadJob ReadWithAdapter(const std::string& lora, const absl::StatusOr<std::string>& config) {
  ReadJob read;
  read.spec = ReadJobFile({.text = kGoodJob,
                           .file_name = "job.yaml",
                           .working_directory = "/home/ada",
                           .read_adapter_config = [&](const std::string&) { return config; },
                           .overrides = {kWithWeights, absl::StrCat("train.lora=", lora)}},
                          &read.problems);
  return read;
}

absl::StatusOr<PreparedJob> PrepareLora(const v1::JobSpec& spec) {
  return PrepareJob(spec, {.job_id = "abcdefgh", .default_run_root = "/runs"});
}

std::map<std::string, std::string> LoraDecisions(const PreparedJob& job) {
  std::map<std::string, std::string> decisions;
  for (const v1::ResolvedKey& decision : job.decisions) {
    if (decision.key().rfind("train.lora", 0) == 0) {
      decisions[decision.key()] = absl::StrCat(decision.value(), " (", decision.reason(), ")");
    }
  }
  return decisions;
}

TEST(Lora, RankAlone_ResolvesAlphaAndTargets) {
  const ReadJob read = ReadLora("4");
  ASSERT_TRUE(read.problems.ok()) << read.Errors();
  EXPECT_THAT(read.Warnings(), IsEmpty());

  auto job = PrepareLora(read.spec);

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(
      LoraDecisions(*job),
      (std::map<std::string, std::string>{
          {"train.lora.alpha", "4 (equal to the rank, so that the product of the adapter's matrices has the factor 1)"},
          {"train.lora.targets", "c_attn (the default of PEFT for gpt2)"}}));
  EXPECT_EQ(SizesOf(job->spec.train()).lora, (LoraSettings{.rank = 4, .alpha = 4, .targets = {"c_attn"}}));
}

TEST(Lora, JobWithoutAdapters_HasNoSettingsOfThem) {
  auto job = PrepareLora(ReadLora("{rank: 0, alpha: 3, targets: [x]}").spec);

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(LoraDecisions(*job), IsEmpty());
  EXPECT_FALSE(job->spec.train().lora().has_alpha());
  EXPECT_EQ(job->spec.train().lora().targets_size(), 0);
}

TEST(Lora, KeysWithoutEffect_CauseWarnings) {
  EXPECT_EQ(ReadLora("{alpha: 3, dropout: 0.1, targets: [c_attn]}").problems.Warnings().size(), 3u);
  EXPECT_THAT(ReadLora("{alpha: 3}").Warnings(),
              HasSubstr("train.lora.alpha: has no effect: train.lora.rank is 0, so there are no adapters"));
  EXPECT_THAT(ReadLora("4", {}).Warnings(), HasSubstr("train.lora: freezes the model's own weights, but these are "
                                                      "random: give train.model.path or train.model.init_from"));
  EXPECT_THAT(ReadLora("17").Warnings(),
              HasSubstr("train.lora.rank: is 17, but the smallest side of a projection is 16"));
  EXPECT_THAT(ReadLora("16").Warnings(), IsEmpty());
}

TEST(Lora, TargetsThatMatchNothing_AreListedWithTheNames) {
  EXPECT_THAT(ReadLora("{rank: 2, targets: [q_proj, c_attn, h.2.*]}").Errors(),
              HasSubstr("train.lora.targets: 'q_proj', 'h.2.*' match no projection; the projections of a block are "
                        "attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj, and a whole name is like h.0.attn.c_attn"));
  EXPECT_THAT(ReadLora("{rank: 2, targets: [c_att]}").Errors(), HasSubstr("'c_att' matches no projection"));
  EXPECT_THAT(ReadLora("{rank: 2, targets: ['']}").Errors(), HasSubstr("'' matches no projection"));
}

TEST(Lora, BadValues_AreRefusedTogether) {
  const std::string errors = ReadLora("{rank: -1, alpha: 0, dropout: 2, targets: [c_attn]}").Errors();

  for (const char* key : {"train.lora.rank: ", "train.lora.alpha: ", "train.lora.dropout: "}) {
    EXPECT_THAT(errors, HasSubstr(key));
  }
}

TEST(Lora, FreezeIsRefused) {
  EXPECT_THAT(ReadLora("2", {kWithWeights, "train.freeze=[wte.weight]"}).Errors(),
              HasSubstr("train.freeze: cannot be combined with train.lora"));
}

TEST(Lora, TooMuchToMatch_IsRefusedQuickly) {
  std::vector<std::string> targets;
  for (int i = 0; i < 256; ++i) targets.push_back(absl::StrCat("'", std::string(40, '*'), i, "'"));
  const std::vector<std::string> deep = {kWithWeights, "train.model.layers=1000"};

  EXPECT_THAT(ReadLora(absl::StrCat("{rank: 2, targets: [", absl::StrJoin(targets, ", "), "]}"), deep).Errors(),
              HasSubstr("train.lora.targets: have globs of "));
  EXPECT_THAT(ReadLora(absl::StrCat("{rank: 2, targets: ['", std::string(101, 'x'), "']}")).Errors(),
              HasSubstr("is 101 bytes long; a target may have at most 100"));
}

TEST(Lora, ParametersAreCountedAndPlanned) {
  v1::JobSpec spec = ReadLora("4").spec, base = Read(kGoodJob).spec;
  const ModelSizes sizes = SizesOf(spec.train());

  EXPECT_EQ(CountParameters(sizes) - CountParameters(BaseSizes(sizes)), 2u * 4u * (16u + 48u));
  EXPECT_LT(PlanMemory(spec).optimizer, PlanMemory(base).optimizer / 4);
  EXPECT_GT(PlanMemory(spec).parameters, PlanMemory(base).parameters);
}

TEST(LoraPath, ConfigDecidesTheSettings) {
  const ReadJob read = ReadWithAdapter("{path: adapter}", std::string(kAdapterConfig));
  ASSERT_TRUE(read.problems.ok()) << read.Errors();

  auto job = PrepareLora(read.spec);

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(SizesOf(job->spec.train()).lora,
            (LoraSettings{.rank = 4, .alpha = 8, .dropout = 0.1, .targets = {"c_attn", "c_proj"}}));
  EXPECT_EQ(LoraDecisions(*job),
            (std::map<std::string, std::string>{
                {"train.lora",
                 "rank 4, alpha 8, dropout 0.1, targets c_attn, c_proj (adapter_config.json of /home/ada/adapter)"}}));
  EXPECT_EQ(job->spec.train().lora().config(), kAdapterConfig);
}

// PEFT may list each projection of each block. 7 projections of 40 blocks are more targets than a job may have.
TEST(LoraPath, ListOfAllProjections_BecomesShort) {
  std::vector<std::string> names;
  for (int layer = 0; layer < 2; ++layer) {
    for (const char* name : {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}) {
      names.push_back(absl::StrCat("\"transformer.h.", layer, ".", name, "\""));
    }
  }
  const std::string config =
      absl::StrCat(R"({"peft_type": "LORA", "target_modules": [)", absl::StrJoin(names, ", "), "]}");

  const ReadJob read = ReadWithAdapter("{path: adapter}", config);

  ASSERT_TRUE(read.problems.ok()) << read.Errors();
  EXPECT_EQ(SizesOf(read.spec.train()).lora.targets,
            (std::vector<std::string>{"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}));
}

// Regression: a client could stop the coordinator for hours, because targets were compared with the projections of all
// layers before the number of layers was checked.
TEST(LoraPath, TooManyLayers_AreRefusedQuickly) {
  v1::JobSpec spec = ReadWithAdapter("{path: adapter}", std::string(kAdapterConfig)).spec;
  spec.mutable_train()->mutable_model()->set_layers(4'000'000'000);

  EXPECT_THAT(std::string(PrepareLora(spec).status().message()),
              HasSubstr("train.model.layers: must be from 1 to 1024, found 4"));
}

TEST(LoraPath, EqualKeysAreAccepted_AndDropoutMayDiffer) {
  const ReadJob read = ReadWithAdapter("{path: adapter, rank: 4, alpha: 8, dropout: 0, targets: [c_attn, c_proj]}",
                                       std::string(kAdapterConfig));

  ASSERT_TRUE(read.problems.ok()) << read.Errors();
  EXPECT_EQ(read.spec.train().lora().dropout(), 0);
}

TEST(LoraPath, KeysThatContradictTheConfig_AreRefused) {
  const std::string errors =
      ReadWithAdapter("{path: adapter, rank: 8, alpha: 9, targets: [c_attn]}", std::string(kAdapterConfig)).Errors();

  EXPECT_THAT(errors, HasSubstr("train.lora.rank: is 8, but /home/ada/adapter/adapter_config.json says 4; remove "));
  EXPECT_THAT(errors, HasSubstr("train.lora.alpha: is 9, but "));
  EXPECT_THAT(errors, HasSubstr("train.lora.targets: is [c_attn], but "));
}

TEST(LoraPath, FolderThatCannotBeRead_AndUnsupportedConfig_AreRefused) {
  EXPECT_THAT(ReadWithAdapter("{path: adapter}", absl::NotFoundError("adapter_config.json is not there")).Errors(),
              HasSubstr("train.lora.path: adapter_config.json is not there"));
  EXPECT_THAT(ReadWithAdapter("{path: adapter}", std::string(R"({"peft_type": "IA3"})")).Errors(),
              HasSubstr("train.lora.path: /home/ada/adapter/adapter_config.json describes an adapter that cannot be "
                        "trained here: peft_type"));
  v1::JobSpec spec = ReadLora("4").spec;
  spec.mutable_train()->mutable_lora()->set_path("/adapter");
  EXPECT_THAT(std::string(PrepareLora(spec).status().message()),
              HasSubstr("train.lora.path: needs the text of its adapter_config.json in train.lora.config"));
}

}  // namespace
}  // namespace trainyard
