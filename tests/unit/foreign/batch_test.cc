// Sizes of batches in imported files of DeepSpeed: train_batch_size = micro x accumulation x data ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/foreign/imported.h"

namespace trainyard::foreign {
namespace {

// The sizes that a file with these values gives on four ranks, such as "global 64 micro 4"; or the errors.
std::string SizesOf(const std::string& values, std::vector<std::string> flags = {}) {
  flags.push_back("resources.ranks=4");
  const Imported imported = Import(absl::StrCat("{", values, "}"), RequiredFlagsAnd(flags));
  if (!imported.Errors().empty()) return imported.Errors();
  const v1::Batch& batch = imported.job.spec.train().batch();
  return absl::StrCat("global ", batch.global_size(), " micro ", batch.micro());
}

TEST(BatchTest, EachSizeFollowsFromTheOthersAsInDeepSpeed) {
  EXPECT_EQ(SizesOf(R"("train_batch_size": 64, "train_micro_batch_size_per_gpu": 4)"), "global 64 micro 4");
  EXPECT_EQ(SizesOf(R"("train_batch_size": 64, "gradient_accumulation_steps": 2)"), "global 64 micro 8");
  EXPECT_EQ(SizesOf(R"("train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4)"), "global 64 micro 4");
  EXPECT_EQ(SizesOf(R"("train_micro_batch_size_per_gpu": 4)"), "global 16 micro 4");
  EXPECT_EQ(SizesOf(R"("train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4)"),
            "global 64 micro 4");
}

TEST(BatchTest, AWrongProductIsRefusedAndShown) {
  EXPECT_EQ(SizesOf(R"("train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4)"),
            "their.file:1:2: train_batch_size: the batch of a step is 32, but 64 = micro 4 x accumulation 4 x 4 data "
            "ranks; correct one of the sizes, or resources.ranks");
  EXPECT_EQ(SizesOf(R"("train_batch_size": 30, "train_micro_batch_size_per_gpu": 4)"),
            "their.file:1:2: train_batch_size: the batch of a step is 30, but 16 = micro 4 x accumulation 1 x 4 data "
            "ranks; correct one of the sizes, or resources.ranks");
}

TEST(BatchTest, SizesThatAreNotPositiveAreRefused) {
  EXPECT_EQ(SizesOf(R"("train_batch_size": 0, "train_micro_batch_size_per_gpu": 4)"),
            "their.file:1:2: train_batch_size: must be from 1 to 16777216, found 0");
}

TEST(BatchTest, DataRanksAreRanksWithoutThoseThatDivideTheModel) {
  EXPECT_EQ(SizesOf(R"("train_micro_batch_size_per_gpu": 4, "tensor_parallel": {"autotp_size": 2})"),
            "global 8 micro 4");
}

TEST(BatchTest, AutoIsResolvedFromFlagsAndPrinted) {
  const std::string all_auto =
      "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", "
      "\"gradient_accumulation_steps\": \"auto\"}";

  const Imported imported =
      Import(all_auto, RequiredFlagsAnd({"resources.ranks=2", "train.batch.global=16", "train.batch.micro=2"}));

  EXPECT_EQ(imported.Errors(), "");
  EXPECT_THAT(imported.Notes(), testing::HasSubstr("gradient_accumulation_steps: auto is 4, from 16 = micro 2 x "
                                                   "accumulation 4 x 2 data ranks"));
}

TEST(BatchTest, AutoWithoutFlagsIsAMissingKey) {
  const Imported imported = Import(R"({"train_batch_size": "auto"})", RequiredFlags());

  EXPECT_EQ(imported.job.missing, std::vector<std::string>{"train.batch"});
  EXPECT_THAT(imported.Notes(), testing::HasSubstr("train_batch_size: the size of the batch is not known"));
}

TEST(BatchTest, AFlagReplacesTheBatchAndTheAccumulationFollows) {
  const Imported imported =
      Import(R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})",
             RequiredFlagsAnd({"resources.ranks=2", "train.batch.global=32"}));

  EXPECT_EQ(imported.Errors(), "");
  EXPECT_EQ(imported.job.spec.train().batch().global_size(), 32u);
  EXPECT_EQ(imported.job.spec.train().batch().micro(), 4u);
  EXPECT_THAT(
      imported.Notes(),
      testing::AllOf(testing::HasSubstr("--set train.batch.global=32 replaces 16, which train_batch_size asks for"),
                     testing::HasSubstr("is 4 instead of 2, because of --set")));
}

// As in DeepSpeed, which reduces the gradients of stages 2 and 3 after each micro-batch.
TEST(BatchTest, GradientsThatDeepSpeedShardsAreReducedAfterEachOfSeveralMicroBatches) {
  const auto reduces = [](const std::string& values, std::vector<std::string> flags) {
    const Imported imported = Import(absl::StrCat("{", values, "}"), RequiredFlagsAnd(std::move(flags)));
    EXPECT_THAT(imported.Warnings(), testing::Not(testing::HasSubstr("reduce_every_micro_batch"))) << values;
    return imported.job.spec.parallel().has_reduce_every_micro_batch();
  };
  const std::string two = R"("train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "zero_optimization": )";
  const std::string ranks = "resources.ranks=2";

  EXPECT_TRUE(reduces(two + R"({"stage": 2})", {ranks}));
  EXPECT_TRUE(reduces(two + R"({"stage": 3})", {ranks}));
  EXPECT_TRUE(reduces(two + R"({"stage": 3, "mics_shard_size": 2})", {"resources.ranks=2"}));
  EXPECT_FALSE(reduces(two + R"({"stage": 1})", {ranks})) << "DeepSpeed reduces them once per step, too";
  EXPECT_FALSE(reduces(two + R"({"stage": 2})", {"resources.ranks=4"})) << "a step is one micro-batch";
  EXPECT_FALSE(reduces(two + R"({"stage": 2})", {})) << "one rank reduces nothing";
  EXPECT_FALSE(reduces(two + R"({"stage": 2})", {ranks, "parallel.data=ddp"})) << "--set says ddp";
}

TEST(BatchTest, TheReductionOfEachMicroBatchIsAnnounced) {
  const std::string file =
      R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2}})";

  const Imported imported = Import(file, RequiredFlagsAnd({"resources.ranks=2"}));

  EXPECT_EQ(imported.Became("zero_optimization.stage"), "parallel.data=zero2 parallel.reduce_every_micro_batch=true");
  EXPECT_THAT(imported.Notes(), testing::HasSubstr("parallel.reduce_every_micro_batch is true: with stages 2 and 3"));
  EXPECT_FALSE(Import(file, RequiredFlagsAnd({"resources.ranks=2", "parallel.reduce_every_micro_batch=false"}))
                   .complete.parallel()
                   .reduce_every_micro_batch());
}

}  // namespace
}  // namespace trainyard::foreign
