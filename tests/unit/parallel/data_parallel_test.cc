// DDP with a communicator that only records its calls: the order of the buckets, and when each reduction is started.
#include "worker/parallel/data_parallel.h"
#include "worker/model/model_factory.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "worker/collectives/single_communicator.h"
#include "worker/parallel/parallelize.h"

namespace trainyard {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;

class CompletedCollective final : public Collective {
 public:
  explicit CompletedCollective(absl::Status status) : status_(std::move(status)) {}
  absl::Status Wait() override { return status_; }

 private:
  absl::Status status_;
};

class RecordingCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 2; }
  std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override {
    reduced.push_back(tensor.numel());
    return std::make_unique<CompletedCollective>(result);
  }
  std::unique_ptr<Collective> Broadcast(const at::Tensor&, int) override {
    return std::make_unique<CompletedCollective>(result);
  }
  std::unique_ptr<Collective> AllGather(const at::Tensor&, const at::Tensor&) override {
    return std::make_unique<CompletedCollective>(result);
  }
  std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor&, const at::Tensor&) override {
    return std::make_unique<CompletedCollective>(result);
  }
  std::unique_ptr<Collective> Barrier() override { return std::make_unique<CompletedCollective>(result); }
  absl::Status MonitoredBarrier(absl::Duration) override { return result; }
  void Abort(absl::string_view) override {}
  CollectiveProgress progress() const override { return {}; }

  std::vector<int64_t> reduced;
  absl::Status result;
};

class DdpTest : public testing::Test {
 protected:
  std::unique_ptr<DataParallel> NewStrategy(bool overlap) {
    Mesh mesh = *Mesh::Create({.dp_replicate = 2}, 2);
    return *Parallelize(*model_, mesh, Communicators(), {.data = {.bucket_elements = 3000, .overlap = overlap}});
  }
  MeshCommunicators Communicators() { return {&communicator_, &communicator_, single_.get(), &communicator_}; }
  void RunMicroBatch(DataParallel& strategy, bool last) {
    at::Tensor tokens = at::arange(9, at::kLong).view({1, 9});
    absl::StatusOr<at::Tensor> loss = strategy.Forward(
        [&] { return model_->LossSum(tokens.narrow(1, 0, 8), tokens.narrow(1, 1, 8), strategy, std::nullopt); });
    ASSERT_TRUE(loss.ok());
    ASSERT_TRUE(strategy.Backward(*loss, last).ok());
  }
  static std::vector<int64_t> BucketSizes(DataParallel& strategy, const Model& model) {
    std::vector<int64_t> sizes;
    for (const std::vector<std::string>& bucket : strategy.state().BucketOrder()) {
      sizes.push_back(0);
      for (const NamedTensor& parameter : model.parameters()) {
        if (std::count(bucket.begin(), bucket.end(), parameter.name)) sizes.back() += parameter.tensor.numel();
      }
    }
    return sizes;
  }

  std::unique_ptr<Model> model_ =
      *NewModel({.layers = 2, .heads = 2, .width = 16, .context = 8, .vocabulary = 32}, 1, at::kFloat);
  RecordingCommunicator communicator_;
  std::unique_ptr<Communicator> single_ = NewSingleCommunicator();
};

TEST_F(DdpTest, BucketsAreReducedInOrderOncePerStep) {
  for (bool overlap : {true, false}) {
    communicator_.reduced.clear();
    auto strategy = NewStrategy(overlap);
    for (int step = 0; step < 2; ++step) {
      communicator_.reduced.clear();
      RunMicroBatch(*strategy, /*last=*/false);
      EXPECT_THAT(communicator_.reduced, IsEmpty()) << "a gradient that is not complete was reduced";
      RunMicroBatch(*strategy, /*last=*/true);
      EXPECT_EQ(communicator_.reduced.empty(), !overlap);
      ASSERT_TRUE(strategy->FinishBackward().ok());
      EXPECT_THAT(communicator_.reduced, ElementsAreArray(BucketSizes(*strategy, *model_)));
      EXPECT_GT(communicator_.reduced.size(), 2u);
      absl::StatusOr<StepOutput> output = strategy->Step({.lr = 1e-3, .num_tokens = 16});
      ASSERT_TRUE(output.ok());
      EXPECT_EQ(output->num_reductions, communicator_.reduced.size());
    }
  }
}

TEST_F(DdpTest, BucketOrderOfUnits_IsThatOfBackward_AndSmallParametersAreLast) {
  auto strategy = *Parallelize(*model_, *Mesh::Create({.dp_shard = 2}, 2),
                               {&communicator_, &communicator_, &communicator_, single_.get()},
                               {.data = {.strategy = Strategy::kFsdp, .persist_elements = 100}});

  EXPECT_THAT(strategy->state().BucketOrder(),
              ElementsAre(Contains("h.1.attn.c_attn.weight"), Contains("h.0.attn.c_attn.weight"),
                          Contains("wte.weight"), Contains("ln_f.weight")));
}

TEST_F(DdpTest, ARankWithoutWorkReducesTheSameBuckets) {
  auto strategy = NewStrategy(true);

  ASSERT_TRUE(strategy->FinishBackward().ok());

  EXPECT_THAT(communicator_.reduced, ElementsAreArray(BucketSizes(*strategy, *model_)));
}

TEST_F(DdpTest, AFailedReductionIsReported) {
  auto strategy = NewStrategy(true);
  communicator_.result = absl::UnavailableError("peer gone");

  RunMicroBatch(*strategy, true);

  EXPECT_TRUE(absl::IsUnavailable(strategy->FinishBackward()));
}

TEST_F(DdpTest, AStepLeavesNoGradients_AndTheModelKeepsItsWeights) {
  at::Tensor before = model_->parameters()[0].tensor.detach().clone();
  auto strategy = NewStrategy(true);
  EXPECT_TRUE(before.equal(model_->parameters()[0].tensor)) << "moving into flat buffers changed a parameter";

  RunMicroBatch(*strategy, true);
  ASSERT_TRUE(strategy->FinishBackward().ok());
  StepOutput output = *strategy->Step({.lr = 1e-3, .num_tokens = 8});

  EXPECT_GT(output.gradient_norm, 0);
  for (const NamedTensor& parameter : model_->parameters()) {
    EXPECT_FALSE(parameter.tensor.grad().defined()) << parameter.name;
  }
  EXPECT_FALSE(before.equal(model_->parameters()[0].tensor));
}

TEST_F(DdpTest, ARestoredRunContinuesBitForBit) {
  auto step = [&](DataParallel& strategy) {
    RunMicroBatch(strategy, true);
    EXPECT_TRUE(strategy.FinishBackward().ok());
    EXPECT_TRUE(strategy.Step({.lr = 1e-3, .num_tokens = 8}).ok());
  };
  auto strategy = NewStrategy(true);
  step(*strategy);
  step(*strategy);
  std::map<std::pair<std::string, std::string>, at::Tensor> saved;
  std::vector<std::pair<std::string, std::string>> visited, listed;
  ASSERT_TRUE(strategy->state()
                  .Visit([&](const StateEntry& entry, const at::Tensor& values) {
                    visited.emplace_back(entry.role, entry.name);
                    saved[visited.back()] = values.detach().clone();
                    return absl::OkStatus();
                  })
                  .ok());
  for (const StateEntry& entry : strategy->state().Entries()) listed.emplace_back(entry.role, entry.name);
  EXPECT_EQ(visited, listed);
  step(*strategy);
  std::vector<NamedHash> expected = *strategy->state().HashParameters();
  strategy.reset();

  model_ = *NewModel({.layers = 2, .heads = 2, .width = 16, .context = 8, .vocabulary = 32}, 99, at::kFloat);
  auto resumed = NewStrategy(true);
  auto source = [&](const StateEntry& entry, int64_t first, int64_t count, const at::Tensor& out) {
    out.copy_(saved.at({entry.role, entry.name}).view(-1).narrow(0, first, count));
    return absl::OkStatus();
  };
  ASSERT_TRUE(resumed->state().Load(source).ok());
  resumed->state().set_num_updates(2);
  step(*resumed);

  EXPECT_EQ(*resumed->state().HashParameters(), expected);
}

TEST_F(DdpTest, AnUnsupportedMeshAxisIsRefused) {
  Mesh mesh = *Mesh::Create({.cp = 2}, 2);
  auto strategy = Parallelize(*model_, mesh, Communicators(), {});
  EXPECT_TRUE(absl::IsUnimplemented(strategy.status()));
  EXPECT_THAT(strategy.status().message(), HasSubstr("cp is 2"));
}

TEST_F(DdpTest, AWholeModelIsRefusedWhereEachRankHasAPart) {
  for (const MeshShape& shape : {MeshShape{.pp = 2}, MeshShape{.tp = 2}}) {
    auto strategy = Parallelize(*model_, *Mesh::Create(shape, 2), Communicators(), {});
    EXPECT_TRUE(absl::IsInvalidArgument(strategy.status()));
    EXPECT_THAT(strategy.status().message(), HasSubstr("is not the part of a rank"));
  }
}

TEST_F(DdpTest, AMeshOfAnotherSizeThanTheGroupIsRefused) {
  Mesh mesh = *Mesh::Create({.dp_replicate = 3}, 3);
  EXPECT_TRUE(absl::IsInvalidArgument(Parallelize(*model_, mesh, Communicators(), {}).status()));
}

}  // namespace
}  // namespace trainyard
