// Jobs that begin with the weights of a folder of transformers, without an import.
#include "worker/trainer/initial_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "checkpoint/model_export.h"
#include "checkpoint/reader.h"
#include "models/hugging_face_config.h"
#include "tests/unit/link/fake_link.h"
#include "tests/unit/trainer/small_job.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const ModelSizes kGpt2{.layers = 2, .heads = 2, .width = 16, .context = 16, .vocabulary = 256};

class InitialWeightsTest : public SmallJobTest {
 protected:
  // Trains with two ranks and returns the losses of their steps.
  std::vector<double> LossesOfTwoRanks(const std::string& strategy, const std::string& init_from) {
    FakeStore store;
    FakeLink links[2] = {FakeLink(&store), FakeLink(&store)};
    std::ostringstream logs[2];
    std::vector<std::thread> ranks;
    StartOrder order = SmallOrder(absl::StrCat("run-", num_runs_++), 4);
    order.world_size = 2;
    order.config.batch_global = 4;
    order.config.batch_micro = 2;
    order.config.parallel.strategy = strategy;
    order.config.init_from = init_from;
    for (int r = 0; r < 2; ++r) {
      order.rank = r;
      ranks.emplace_back([&, r, order] {
        EXPECT_EQ(RunRank(order, {.link = links[r],
                                  .file_system = FileSystem::Real(),
                                  .log = logs[r],
                                  .must_leave = [] { return false; }}),
                  kExitDone)
            << logs[r].str();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    std::vector<double> losses;
    for (const StepRecord& step : links[0].steps()) losses.push_back(step.loss);
    return losses;
  }

  TrainerExit RunOne(const StartOrder& order, FakeLink& link) {
    std::ostringstream log;
    return RunRank(order,
                   {.link = link, .file_system = FileSystem::Real(), .log = log, .must_leave = [] { return false; }});
  }

  int num_runs_ = 0;
};

// Under strategies that hold the parameters whole and as shards.
TEST_F(InitialWeightsTest, FolderOfTransformers_BeginsLikeTheCheckpointThatItWasExportedFrom) {
  FakeLink first;
  StartOrder order = SmallOrder("first", 3);
  order.config.batch_global = order.config.batch_micro = 2;
  ASSERT_EQ(RunOne(order, first), kExitDone);
  auto trained = Checkpoint::Open(folder_ / "first/step-00000003");
  ASSERT_TRUE(trained.ok()) << trained.status();
  ASSERT_TRUE(ExportModel(**trained, kGpt2, folder_ / "gpt2", FileSystem::Real(), {.max_shard_bytes = 5000}).ok());
  ASSERT_FALSE(FileExists(folder_ / "gpt2/model.safetensors"));

  for (const char* strategy : {"ddp", "zero1", "fsdp"}) {
    const std::vector<double> from_folder = LossesOfTwoRanks(strategy, folder_ / "gpt2");
    const std::vector<double> from_checkpoint = LossesOfTwoRanks(strategy, folder_ / "first/step-00000003");
    ASSERT_EQ(from_folder.size(), 4u) << strategy;
    EXPECT_EQ(from_folder, from_checkpoint) << strategy;
  }
}

TEST_F(InitialWeightsTest, FolderOfAnotherModel_IsRefusedWithBothModels) {
  ModelSizes other = kGpt2;
  other.layers = 3;
  ASSERT_TRUE(MakeFolders(folder_ / "model").ok());
  ASSERT_TRUE(WriteFileAtomically(folder_ / "model/config.json", HuggingFaceConfig(other, "F32")).ok());
  StartOrder order = SmallOrder("run", 2);
  order.config.batch_global = order.config.batch_micro = 2;
  order.config.init_from = folder_ / "model";
  FakeLink link;

  EXPECT_EQ(RunOne(order, link), kExitRefused);

  EXPECT_THAT(link.FactsOf<RefusedFact>().at(0).message,
              AllOf(HasSubstr("train.model.init_from"), HasSubstr("config.json describes a GPT-2 of 3 layers"),
                    HasSubstr("but the job trains a GPT-2 of 2 layers")));
}

}  // namespace
}  // namespace trainyard
