// What ranks refuse or skip because of their input: a loss that is not finite on one rank only, and offloading more
// than host memory can hold. Also how activations on a GPU are counted.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/unit/link/fake_link.h"
#include "tests/unit/trainer/small_job.h"
#include "worker/trainer/device.h"
#include "worker/trainer/rank.h"
#include "worker/trainer/run.h"
#include "worker/trainer/trainer.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// The loss is NaN in the passes, counted from 0, for which `corrupts` returns true.
class CorruptModel final : public Model {
 public:
  CorruptModel(std::unique_ptr<Model> inner, std::function<bool(int pass)> corrupts)
      : inner_(std::move(inner)), corrupts_(std::move(corrupts)) {
    units_ = inner_->units();
    parameters_ = inner_->parameters();
  }
  at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& targets, UnitHooks& hooks,
                     std::optional<DropoutKey> dropout, const at::Tensor& starts) override {
    at::Tensor loss = inner_->LossSum(inputs, targets, hooks, dropout, starts);
    return corrupts_(pass_++) ? loss * std::nan("") : loss;
  }
  at::Tensor Logits(const at::Tensor& inputs, UnitHooks& hooks) override { return inner_->Logits(inputs, hooks); }
  int64_t context() const override { return inner_->context(); }
  int64_t vocabulary() const override { return inner_->vocabulary(); }

 private:
  const std::unique_ptr<Model> inner_;
  const std::function<bool(int)> corrupts_;
  int pass_ = 0;
};

class BadInputTest : public SmallJobTest {
 protected:
  StartOrder Order(const std::string& run, const char* strategy) {
    StartOrder order = SmallOrder(run, 1000);
    order.world_size = order.local_world_size = 2;
    order.config.batch_global = 6;
    order.config.batch_micro = 1;
    order.config.parallel.strategy = strategy;
    return order;
  }
};

// Affects rank 1's second micro-batch of three, which is number 3 of the step, from step 3 on.
TEST_F(BadInputTest, LossThatIsNotFiniteOnOneRank_SkipsTheUpdateOnAllRanksAndThatRankReportsTheCause) {
  for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"}) {
    StartOrder order = Order(strategy, strategy);
    order.config.nonfinite_limit = 3;
    FakeStore store;
    std::vector<std::unique_ptr<FakeLink>> links;
    std::vector<std::ostringstream> logs(2);
    std::vector<absl::Status> ends(2);
    for (int rank = 0; rank < 2; ++rank) links.push_back(std::make_unique<FakeLink>(&store));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        StartOrder own = order;
        own.rank = rank;
        auto made = PrepareRank(own, *links[rank], FileSystem::Real(), logs[rank]);
        ASSERT_TRUE(made.ok()) << made.status();
        auto corrupts = [rank](int pass) { return rank == 1 && pass >= 6 && pass % 3 == 1; };
        (*made)->model = std::make_unique<CorruptModel>(std::move((*made)->model), corrupts);
        Trainer trainer(own, **made, *links[rank], FileSystem::Real(), logs[rank], [] { return false; });
        ends[rank] = trainer.Run().status();
      });
    }
    for (std::thread& thread : threads) thread.join();

    SCOPED_TRACE(strategy);
    EXPECT_EQ(ends[0].code(), absl::StatusCode::kAborted) << ends[0];
    EXPECT_EQ(ends[1].code(), absl::StatusCode::kFailedPrecondition) << ends[1];
    EXPECT_THAT(std::string(ends[1].message()),
                HasSubstr("train.nonfinite_limit: 3 steps in a row, the last of them 5, had no update: the loss of "
                          "micro-batch 3 on rank 1 is not finite"));
    // The last step's report waits for the sums of the next step.
    ASSERT_THAT(links[0]->steps(), SizeIs(4));
    for (const StepRecord& step : links[0]->steps()) EXPECT_EQ(step.skipped, step.step >= 3) << step.step;
    EXPECT_THAT(logs[0].str(), HasSubstr("step 3: a loss or gradient is not finite; every rank skips the update"));
  }
}

// Refused before memory is allocated: the model has more than 5e13 parameters.
TEST_F(BadInputTest, OffloadBeyondTheHostsMemory_IsRefusedByEachRankWithTheEstimate) {
  StartOrder order = Order("run", "fsdp");
  order.config.model = {.layers = 1024, .heads = 2, .width = 65536, .context = 16};
  order.config.parallel.offload_optimizer = true;
  for (int rank = 0; rank < 2; ++rank) {
    StartOrder own = order;
    own.rank = rank;
    FakeLink link;
    std::ostringstream log;

    const TrainerExit code =
        RunRank(own, {.link = link, .file_system = FileSystem::Real(), .log = log, .must_leave = [] { return false; }});

    EXPECT_EQ(code, kExitRefused) << log.str();
    ASSERT_THAT(link.FactsOf<RefusedFact>(), SizeIs(1));
    EXPECT_THAT(link.FactsOf<RefusedFact>()[0].message,
                AllOf(HasSubstr("parallel.offload needs 58"), HasSubstr("for each of 2 ranks of this host), but only "),
                      HasSubstr("is available; offload less, or use more hosts")));
  }
}

// Never called: the refusal depends on the type of the device only.
class NoPlugin final : public CudaPlugin {
 public:
  absl::StatusOr<int> NumDevices() override { return absl::UnimplementedError("not called"); }
  absl::StatusOr<CudaDevice> Use(int) override { return absl::UnimplementedError("not called"); }
  absl::StatusOr<std::unique_ptr<Communicator>> NewNccl(const NcclOptions&) override {
    return absl::UnimplementedError("not called");
  }
  CudaMemory MemoryOf(int) override { return {}; }
};

TEST(CheckPrecision, RefusesTypesThatTheGpuOrItsOptimizerDoesNotSupport) {
  NoPlugin plugin;
  const RankDevice turing{.device = at::Device(at::kCUDA, 0),
                          .cuda = &plugin,
                          .gpu = {.index = 0, .name = "NVIDIA T4", .uuid = "", .major = 7, .minor = 5}};
  RankDevice hopper = turing;
  hopper.gpu.major = 9;
  const Precision stochastic = *ParsePrecision(PrecisionNames{.param = "bf16", .master = "bf16"});

  const absl::Status refused = CheckPrecision(turing, *ParsePrecision("bf16"));

  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr("train.precision has bf16, which NVIDIA T4 (compute capability 7.5) does not compute in; choose "
                "fp16 or fp32"));
  EXPECT_EQ(CheckPrecision(turing, *ParsePrecision("fp16")), absl::OkStatus());
  EXPECT_EQ(CheckPrecision(hopper, *ParsePrecision("bf16")), absl::OkStatus());
  EXPECT_EQ(CheckPrecision(hopper, stochastic).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(CheckPrecision(RankDevice(), stochastic), absl::OkStatus()) << "a CPU supports it";
}

TEST(CountActivations, CountsTheGpuMemoryOfTensorsThatHasNoOtherKind) {
  std::vector<KindUse> uses = {{MemoryKind::kParameters, 100, 120},
                               {MemoryKind::kActivations, 1, 2},
                               {MemoryKind::kHost, 1000, 1000},
                               {MemoryKind::kReserved, 50, 60}};

  CountActivations({.used_bytes = 170, .used_peak_bytes = 400}, uses);

  EXPECT_EQ(uses[1].bytes, 20);
  EXPECT_EQ(uses[1].peak_bytes, 250);
  EXPECT_EQ(uses[0].bytes, 100) << "and nothing else changes";
  CountActivations({.used_bytes = 10, .used_peak_bytes = 10}, uses);
  EXPECT_EQ(uses[1].bytes, 0) << "never negative";
}

}  // namespace
}  // namespace trainyard
