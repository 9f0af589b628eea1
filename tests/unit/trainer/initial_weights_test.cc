// Jobs that begin with the weights of a folder of transformers, which was not imported as a checkpoint before.
#include "worker/trainer/initial_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <thread>

#include "checkpoint/catalog.h"
#include "checkpoint/model_export.h"
#include "checkpoint/reader.h"
#include "common/tensor_roles.h"
#include "models/hugging_face_config.h"
#include "models/lora_targets.h"
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
  std::vector<double> LossesOfTwoRanks(const std::string& strategy, const std::string& init_from,
                                       const LoraSettings& lora = {}, const std::string& lora_path = "") {
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
    order.config.model.lora = lora;
    order.config.lora_path = lora_path;
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
    return RunRank(order, {.link = link,
                           .file_system = FileSystem::Real(),
                           .log = log,
                           .must_leave = [] { return false; },
                           .sizes_of_spec = sizes_of_spec_});
  }

  std::unique_ptr<Checkpoint> OpenCheckpoint(const std::string& run, uint64_t step) {
    auto opened = Checkpoint::Open(JoinPath(folder_ / run, StepFolderName(step)));
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }

  // Trains a model without adapters and exports it.
  void TrainBase() {
    FakeLink link;
    StartOrder order = SmallOrder("base", 3);
    order.config.batch_global = order.config.batch_micro = 2;
    ASSERT_EQ(RunOne(order, link), kExitDone);
    ASSERT_TRUE(ExportModel(*OpenCheckpoint("base", 3), kGpt2, folder_ / "gpt2", FileSystem::Real()).ok());
  }

  std::string RefusalOf(const StartOrder& order) {
    FakeLink link;
    EXPECT_EQ(RunOne(order, link), kExitRefused) << "the job was not refused";
    return link.FactsOf<RefusedFact>().empty() ? "" : link.FactsOf<RefusedFact>()[0].message;
  }

  int num_runs_ = 0;
  SizesOfSpec sizes_of_spec_ = nullptr;
};

const LoraSettings kLora{.rank = 2, .alpha = 8, .dropout = 0.1, .targets = {"c_attn", "mlp.c_proj"}};

// The strategies hold the parameters whole (ddp, zero1) and as shards (fsdp).
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

// Neither a folder of transformers nor a checkpoint of a job without adapters contains adapters, so the adapters have
// random initial values.
TEST_F(InitialWeightsTest, JobWithAdapters_BeginsAtTheLossOfTheModel_AndLearns) {
  TrainBase();
  const std::vector<double> without = LossesOfTwoRanks("ddp", folder_ / "gpt2");

  for (const char* strategy : {"ddp", "zero2", "fsdp"}) {
    const std::vector<double> from_folder = LossesOfTwoRanks(strategy, folder_ / "gpt2", kLora);
    const std::vector<double> from_checkpoint = LossesOfTwoRanks(strategy, folder_ / "base/step-00000003", kLora);
    ASSERT_EQ(from_folder.size(), 4u) << strategy;
    EXPECT_EQ(from_folder, from_checkpoint) << strategy;
    EXPECT_NEAR(from_folder[0], without[0], 1e-5) << strategy;
    EXPECT_NE(from_folder[3], without[3]) << strategy;
    const auto checkpoint = OpenCheckpoint(absl::StrCat("run-", num_runs_ - 1), 4);
    const auto is_moment_of_the_model = [](const ManifestTensor& tensor) {
      return tensor.role != kParameterRole && !IsAdapterName(tensor.name);
    };
    const auto& tensors = checkpoint->manifest().tensors;
    EXPECT_TRUE(std::none_of(tensors.begin(), tensors.end(), is_moment_of_the_model)) << strategy;
  }
}

TEST_F(InitialWeightsTest, ExportedAdapters_GiveTheLossesOfTheCheckpoint) {
  TrainBase();
  LossesOfTwoRanks("fsdp", folder_ / "gpt2", kLora);
  ModelSizes sizes = kGpt2;
  sizes.lora = kLora;
  ASSERT_TRUE(ExportAdapter(*OpenCheckpoint("run-0", 4), sizes, "", folder_ / "adapter", FileSystem::Real()).ok());

  const std::vector<double> from_run = LossesOfTwoRanks("ddp", folder_ / "run-0/step-00000004", kLora);

  for (const char* strategy : {"ddp", "fsdp"}) {
    const std::vector<double> found = LossesOfTwoRanks(strategy, folder_ / "gpt2", kLora, folder_ / "adapter");
    ASSERT_EQ(found.size(), 4u) << strategy;
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[i], from_run[i], 1e-5) << strategy << " step " << i + 1;
  }
}

TEST_F(InitialWeightsTest, FilesThatDoNotFitTheAdapters_AreRefused) {
  TrainBase();
  LossesOfTwoRanks("ddp", folder_ / "gpt2", kLora);
  StartOrder order = SmallOrder("refused", 2);
  order.config.batch_global = order.config.batch_micro = 2;

  order.config.init_from = folder_ / "run-0/step-00000004";
  EXPECT_THAT(RefusalOf(order), AllOf(HasSubstr("train.model.init_from: "), HasSubstr("has adapters, and the job has "
                                                                                      "none: merge them")));

  order.config.model.lora = kLora;
  order.config.model.lora.rank = 3;
  EXPECT_THAT(RefusalOf(order), HasSubstr("wrong shape: h.0.attn.c_attn.lora_A.weight is [2, 16], but the model has "
                                          "[3, 16]"));

  ModelSizes sizes = kGpt2;
  sizes.lora = kLora;
  ASSERT_TRUE(ExportAdapter(*OpenCheckpoint("run-0", 4), sizes, "", folder_ / "adapter", FileSystem::Real()).ok());
  order.config.init_from = folder_ / "gpt2";
  order.config.lora_path = folder_ / "adapter";
  EXPECT_THAT(RefusalOf(order),
              AllOf(HasSubstr("adapter_config.json has rank 2, alpha 8 and targets c_attn, mlp.c_proj, but the job has "
                              "rank 3"),
                    HasSubstr("train.lora.path")));
}

// The factor alpha / rank belongs to the values of adapters, but no tensor of a checkpoint shows it.
TEST_F(InitialWeightsTest, AdaptersOfACheckpoint_AreRefusedIfTheJobWouldComputeSomethingElseWithThem) {
  TrainBase();
  LossesOfTwoRanks("ddp", folder_ / "gpt2", kLora);
  sizes_of_spec_ = [](absl::string_view spec) -> absl::StatusOr<ModelSizes> {
    EXPECT_EQ(spec, "spec") << "not the spec of the job that wrote the checkpoint";
    ModelSizes sizes = kGpt2;
    sizes.lora = kLora;
    return sizes;
  };
  StartOrder order = SmallOrder("refused", 1);
  order.config.batch_global = order.config.batch_micro = 2;
  order.config.init_from = folder_ / "run-0/step-00000004";
  const auto refusal_with = [&](const LoraSettings& lora) {
    order.config.model.lora = lora;
    return RefusalOf(order);
  };
  LoraSettings lora = kLora;

  lora.alpha = 16;
  EXPECT_THAT(refusal_with(lora),
              AllOf(HasSubstr("the adapters in "), HasSubstr("run-0/step-00000004 were trained with other settings: "),
                    HasSubstr(": train.lora.alpha was 8 and is 16 in the job. Set the earlier values, or merge the "
                              "adapters into the model by `trainctl checkpoint export` and name the exported folder; "
                              "train.model.init_from")));
  lora.rank = 3;
  lora.targets = {"c_attn"};
  EXPECT_THAT(refusal_with(lora), HasSubstr("train.lora.rank was 2 and is 3 in the job; train.lora.alpha was 8 and is "
                                            "16 in the job; train.lora.targets was [c_attn, mlp.c_proj] and is "
                                            "[c_attn] in the job"));

  // Other names of the same projections, and another dropout.
  order.config.model.lora = kLora;
  order.config.model.lora.targets = {"attn.c_attn", "h.*.mlp.c_proj"};
  order.config.model.lora.dropout = 0;
  FakeLink link;
  EXPECT_EQ(RunOne(order, link), kExitDone);
}

}  // namespace
}  // namespace trainyard
