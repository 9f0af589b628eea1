// The time that a rank waits for communication, on a clock that only computation and waiting advance. With overlap the
// rank waits only while no computation hides the communication; without overlap it waits for all communication. The
// results are the same.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "worker/collectives/single_communicator.h"
#include "worker/parallel/parallelize.h"

namespace trainyard {
namespace {

constexpr absl::Duration kComputeTime = absl::Seconds(10);   // of a unit's forward; backward takes as long
constexpr absl::Duration kOperationTime = absl::Seconds(8);  // of a collective operation
constexpr int kUnits = 4;

// A chain of layers whose computation advances the clock.
class SlowModel final : public Model {
 public:
  explicit SlowModel(SimulatedClock& clock) : clock_(clock) {
    units_.push_back({.name = "root"});
    for (int unit = 1; unit <= kUnits; ++unit) {
      units_.push_back({.name = absl::StrCat("h.", unit), .first_parameter = unit - 1, .num_parameters = 1});
      parameters_.push_back({units_.back().name, at::full({48}, 0.5 + unit, at::kDouble).requires_grad_(true)});
    }
  }
  at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor&, UnitHooks& hooks, std::optional<DropoutKey>,
                     const at::Tensor& = {}) override {
    hooks.BeforeRoot();
    at::Tensor x = inputs;
    for (int unit = 1; unit <= kUnits; ++unit) {
      x = hooks.RunUnit(unit, x, [this, unit](const at::Tensor& in, ProductTape*) {
        clock_.AdvanceTime(kComputeTime);
        at::Tensor product = in * parameters_[static_cast<size_t>(unit) - 1].tensor;
        if (product.requires_grad()) {
          product.register_hook([this](const at::Tensor&) { clock_.AdvanceTime(kComputeTime); });
        }
        return product + 1;
      });
    }
    return hooks.AfterRoot(x.sum());
  }
  at::Tensor Logits(const at::Tensor& inputs, UnitHooks&) override { return inputs; }
  int64_t context() const override { return 48; }
  int64_t vocabulary() const override { return 1; }

 private:
  SimulatedClock& clock_;
};

// Simulates three ranks that all hold the same values. Operations run one after another from the time they were
// started, while the rank computes.
class SlowCommunicator final : public Communicator {
 public:
  SlowCommunicator(SimulatedClock& clock, absl::Duration operation_time)
      : clock_(clock), operation_time_(operation_time) {}
  int rank() const override { return 0; }
  int world_size() const override { return 3; }
  std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override {
    c10::NoGradGuard no_grad;
    tensor.mul_(3);
    return Start();
  }
  std::unique_ptr<Collective> Broadcast(const at::Tensor&, int) override { return Start(); }
  std::unique_ptr<Collective> AllGather(const at::Tensor& out, const at::Tensor& in) override {
    c10::NoGradGuard no_grad;
    out.view({3, -1}).copy_(in.clone().view({1, -1}).expand({3, -1}));
    return Start();
  }
  std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) override {
    c10::NoGradGuard no_grad;
    out.copy_(in.narrow(0, 0, out.numel()) * 3);
    return Start();
  }
  std::unique_ptr<Collective> Barrier() override { return Start(); }
  absl::Status MonitoredBarrier(absl::Duration) override { return absl::OkStatus(); }
  void Abort(absl::string_view) override {}
  CollectiveProgress progress() const override { return {}; }

 private:
  class SlowCollective final : public Collective {
   public:
    SlowCollective(SimulatedClock& clock, absl::Time end) : clock_(clock), end_(end) {}
    absl::Status Wait() override {
      clock_.AdvanceTime(std::max(end_ - clock_.TimeNow(), absl::ZeroDuration()));
      return absl::OkStatus();
    }

   private:
    SimulatedClock& clock_;
    const absl::Time end_;
  };
  std::unique_ptr<Collective> Start() {
    idle_from_ = std::max(idle_from_, clock_.TimeNow()) + operation_time_;
    return std::make_unique<SlowCollective>(clock_, idle_from_);
  }

  SimulatedClock& clock_;
  const absl::Duration operation_time_;
  absl::Time idle_from_ = absl::InfinitePast();
};

struct Measured {
  double exposed_s = 0;
  double norm = 0;
  double waited_before_s = 0, waited_s = 0;  // before the step, and in it
  absl::Duration step_time;
};

// Returns the measurements of the second step, which follows `evaluations` evaluations.
absl::StatusOr<Measured> Measure(Strategy strategy, bool overlap, int evaluations = 0,
                                 absl::Duration operation_time = kOperationTime) {
  SimulatedClock clock;
  SlowModel model(clock);
  SlowCommunicator communicator(clock, operation_time);
  const auto single = NewSingleCommunicator();
  const bool shards = strategy != Strategy::kDdp;
  ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create(shards ? MeshShape{.dp_shard = 3} : MeshShape{.dp_replicate = 3}, 3));
  Communicator* const one_rank = single.get();
  ASSIGN_OR_RETURN(
      auto parallel,
      Parallelize(model, mesh,
                  {.job = &communicator,
                   .data = &communicator,
                   .shard = shards ? static_cast<Communicator*>(&communicator) : one_rank,
                   .replicate = shards ? one_rank : static_cast<Communicator*>(&communicator)},
                  {.data = {.strategy = strategy, .bucket_elements = 1, .overlap = overlap, .clock = &clock}}));
  Measured measured;
  for (int step = 1; step <= 2; ++step) {
    const at::Tensor x = at::full({48}, 1.0, at::kDouble);
    for (int i = 0; step == 2 && i < evaluations; ++i) {
      c10::NoGradGuard no_grad;
      RETURN_IF_ERROR(parallel->Forward([&] { return model.LossSum(x, x, *parallel, {}); }).status());
    }
    const double waited_before_s = parallel->waited_s();
    const absl::Time began = clock.TimeNow();
    parallel->BeginStep(3);
    ASSIGN_OR_RETURN(at::Tensor loss, parallel->Forward([&] { return model.LossSum(x, x, *parallel, {}); }));
    RETURN_IF_ERROR(parallel->Backward(loss, /*last=*/true));
    RETURN_IF_ERROR(parallel->FinishBackward());
    ASSIGN_OR_RETURN(StepOutput output, parallel->Step({.lr = 1e-3, .num_tokens = 3}));
    measured = {.exposed_s = output.exposed_comm_s,
                .norm = output.gradient_norm,
                .waited_before_s = waited_before_s,
                .waited_s = parallel->waited_s() - waited_before_s,
                .step_time = clock.TimeNow() - began};
  }
  return measured;
}

class ExposedCommunication : public testing::TestWithParam<Strategy> {};
INSTANTIATE_TEST_SUITE_P(, ExposedCommunication,
                         testing::Values(Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFsdp),
                         [](const testing::TestParamInfo<Strategy>& info) { return StrategyName(info.param); });

TEST_P(ExposedCommunication, OverlapReducesTheTime_AndChangesNothingElse) {
  const absl::StatusOr<Measured> without = Measure(GetParam(), false), with = Measure(GetParam(), true);

  ASSERT_TRUE(without.ok()) << without.status();
  ASSERT_TRUE(with.ok()) << with.status();
  // Without overlap the rank waits for at least one operation per unit, because computation hides none.
  EXPECT_GE(without->exposed_s, kUnits * absl::ToDoubleSeconds(kOperationTime));
  EXPECT_LE(with->exposed_s, without->exposed_s - 2 * absl::ToDoubleSeconds(kOperationTime));
  EXPECT_EQ(with->norm, without->norm);
}

// With long operations, zero2 also waits until the memory of a bucket may be overwritten.
TEST_P(ExposedCommunication, OfAStep_IsAllThatTheStepTakesInAdditionToItsComputation) {
  const absl::StatusOr<Measured> measured = Measure(GetParam(), true, /*evaluations=*/0, 5 * kComputeTime);

  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_DOUBLE_EQ(measured->exposed_s, absl::ToDoubleSeconds(measured->step_time - 2 * kUnits * kComputeTime));
}

TEST_P(ExposedCommunication, OfAStep_LeavesOutTheWaitsOfAnEvaluationBeforeIt) {
  const absl::StatusOr<Measured> without = Measure(GetParam(), false), with = Measure(GetParam(), false, 3);

  ASSERT_TRUE(without.ok()) << without.status();
  ASSERT_TRUE(with.ok()) << with.status();
  if (GetParam() == Strategy::kFsdp) {
    EXPECT_GT(with->waited_before_s, without->waited_before_s) << "the evaluations gather parameters";
  }
  EXPECT_DOUBLE_EQ(with->exposed_s, without->exposed_s);
  EXPECT_DOUBLE_EQ(with->exposed_s, with->waited_s);
}

}  // namespace
}  // namespace trainyard
