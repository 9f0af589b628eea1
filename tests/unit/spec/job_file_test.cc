// Reading of job files: values, paths, presets, overrides.
#include "spec/job_file.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/spec/sample_job.h"

namespace trainyard {
namespace {

TEST(JobFile, KeysBecomeFieldsAndNothingIsDefaulted) {
  ReadJob read = Read(kGoodJob);

  ASSERT_EQ(read.Errors(), "");
  EXPECT_EQ(read.spec.name(), "tiny");
  EXPECT_EQ(read.spec.train().model().width(), 16u);
  EXPECT_EQ(read.spec.train().steps(), 10u);
  EXPECT_FALSE(read.spec.train().has_seed());
  EXPECT_FALSE(read.spec.has_checkpoint());
}

TEST(JobFile, RelativePathsAreResolvedAgainstTheWorkingDirectory) {
  ReadJob read = Read(absl::StrReplaceAll(kGoodJob, {{"[corpus]", "[corpus, ../b/./c, /abs/*.txt]"}}));

  const auto& text = read.spec.train().data().text();
  EXPECT_EQ(std::vector<std::string>(text.begin(), text.end()),
            std::vector<std::string>({"/home/ada/corpus", "/home/b/c", "/abs/*.txt"}));
}

TEST(JobFile, WholeNumbersMayBeWrittenWithAnExponent) {
  EXPECT_EQ(Read(absl::StrReplaceAll(kGoodJob, {{"steps: 10", "steps: 1e3"}})).spec.train().steps(), 1000u);
}

TEST(JobFile, AnchorsAndAliasesAreRead) {
  ReadJob read = Read(absl::StrReplaceAll(kGoodJob, {{"layers: 2", "layers: &n 2"}, {"heads: 2", "heads: *n"}}));

  EXPECT_EQ(read.Errors(), "");
  EXPECT_EQ(read.spec.train().model().heads(), 2u);
}

TEST(JobFile, AutoLeavesAKeyUnset) {
  ReadJob read = Read(absl::StrReplaceAll(kGoodJob, {{"micro: 2", "micro: auto"}}));

  EXPECT_EQ(read.Errors(), "");
  EXPECT_FALSE(read.spec.train().batch().has_micro());
}

TEST(Overrides, ReplaceTheFileAndEarlierOverrides) {
  ReadJob read = Read(kGoodJob, {"train.steps=20", "train.optimizer.betas=[0.8, 0.9]", "train.steps=30",
                                 "resources={ranks: 4}", "checkpoint.dir=out"});

  EXPECT_EQ(read.Errors(), "");
  EXPECT_EQ(read.spec.train().steps(), 30u);
  EXPECT_EQ(read.spec.train().optimizer().betas(1), 0.9);
  EXPECT_EQ(read.spec.resources().ranks(), 4u);
  EXPECT_EQ(read.spec.checkpoint().dir(), "/home/ada/out");
}

TEST(Overrides, OfAMap_SetTheKeysTheyName) {
  ReadJob read = Read(kGoodJob, {"train.batch={global: 16}"});

  EXPECT_EQ(read.spec.train().batch().global_size(), 16u);
  EXPECT_EQ(read.spec.train().batch().micro(), 2u);
}

TEST(Overrides, OfAMap_WithoutAValue_AreRefused) {
  for (const char* value : {"", "null", "~"}) {
    const std::string errors = Read(kGoodJob, {absl::StrCat("train.batch=", value)}).Errors();
    EXPECT_TRUE(absl::StrContains(errors, "train.batch: has no value; expected a map with the keys")) << errors;
  }
}

TEST(Overrides, OfAList_ReplaceTheWholeList) {
  ReadJob read = Read(kGoodJob, {"train.data.text=[a]", "train.data.text=[b, c]"});

  EXPECT_EQ(read.spec.train().data().text_size(), 2);
}

TEST(Overrides, AutoUndoesTheValueOfTheFile) {
  EXPECT_FALSE(Read(kGoodJob, {"train.batch.micro=auto"}).spec.train().batch().has_micro());
}

TEST(Overrides, SetKeysThatTheFileLacks) {
  EXPECT_EQ(Read(absl::StrReplaceAll(kGoodJob, {{"  steps: 10\n", ""}}), {"train.steps=5"}).Errors(), "");
}

TEST(Overrides, ProblemsNameTheOverride) {
  ReadJob read = Read(kGoodJob, {"train.stepz=3", "train.steps=three", "train.steps.x=1", "nonsense",
                                 "train.seed=", "train.model.heads=5", "name={a", "train.data.text=[1"});

  EXPECT_EQ(
      read.Errors(),
      "--set train.stepz=3: train: unknown key 'stepz'; did you mean 'steps'? Valid here: model, data, batch, "
      "optimizer, schedule, precision, steps, evaluate, seed, loss_scale, freeze, nonfinite_limit, lora\n"
      "--set train.steps=three: train.steps: expected a whole number from 1 to 1000000000000, found 'three'\n"
      "--set train.steps.x=1: train.steps: is a whole number from 1 to 1000000000000 and has no key 'x'\n"
      "--set nonsense: expected key=value, for example train.steps=100\n"
      "--set train.seed=: train.seed: has no value; expected a whole number from 0 to 9007199254740991\n"
      "--set name={a: expected ': ' after the key 'a'\n"
      "--set train.data.text=[1: the list that opens here is not closed by ']'\n"
      "--set train.model.heads=5: train.model.heads: width 16 is not a multiple of heads 5; choose heads 1, 2, 4, 8 "
      "or width 15 or 20");
}

std::string WithModel(const std::string& model) {
  return absl::StrReplaceAll(kGoodJob, {{"    layers: 2\n    heads: 2\n    width: 16\n    context: 8\n", model}});
}

TEST(Presets, FillTheSizes) {
  const v1::Model model = Read(WithModel("    preset: lab-10m\n")).spec.train().model();

  EXPECT_EQ(model.layers(), 6u);
  EXPECT_EQ(model.heads(), 6u);
  EXPECT_EQ(model.width(), 384u);
  EXPECT_EQ(model.context(), 256u);
}

TEST(Presets, FillOnlyKeysThatNeitherFileNorOverrideHas) {
  const v1::Model model =
      Read(WithModel("    preset: lab-tiny\n    context: 32\n"), {"train.model.layers=1"}).spec.train().model();

  EXPECT_EQ(model.layers(), 1u);
  EXPECT_EQ(model.heads(), 4u);
  EXPECT_EQ(model.width(), 128u);
  EXPECT_EQ(model.context(), 32u);
}

TEST(Presets, UnknownPreset_IsTheOnlyProblem) {
  EXPECT_EQ(Read(WithModel("    preset: huge\n")).problems.error_count(), 1);
}

}  // namespace
}  // namespace trainyard
