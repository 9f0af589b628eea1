#include "tests/parity/sleeping_stages.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <chrono>
#include <numeric>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "models/model_description.h"
#include "tests/parity/cells.h"
#include "tests/parity/matrix_runs.h"
#include "worker/collectives/pipeline_channels.h"
#include "worker/model/model.h"
#include "worker/parallel/parallelize.h"
#include "worker/parallel/pipeline_executor.h"

namespace trainyard {
namespace {

int64_t SteadyMicroseconds() {
  using std::chrono::steady_clock;
  return std::chrono::duration_cast<std::chrono::microseconds>(steady_clock::now().time_since_epoch()).count();
}

// Sleeps, and adds the time that this took to `slept_us`.
void Sleep(int64_t ms, int64_t& slept_us) {
  const int64_t start = SteadyMicroseconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  slept_us += SteadyMicroseconds() - start;
}

struct SleepFunction : torch::autograd::Function<SleepFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, int64_t forward_ms,
                            int64_t slept_us) {
    context->saved_data["forward_ms"] = forward_ms;
    context->saved_data["slept_us"] = slept_us;
    Sleep(forward_ms, *reinterpret_cast<int64_t*>(slept_us));
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    Sleep(2 * context->saved_data["forward_ms"].toInt(),
          *reinterpret_cast<int64_t*>(context->saved_data["slept_us"].toInt()));
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

// The sizes matter little: no parameter but the embedding is used.
ModelSizes SleepingSizes() { return {.layers = 8, .heads = 1, .width = 4, .context = 1, .vocabulary = 2}; }

class SleepingModel final : public Model {
 public:
  SleepingModel(const ModelPart& part, int64_t forward_ms) : forward_ms_(forward_ms) {
    AddParameters(DescribeModel(SleepingSizes()), part, at::kFloat);
    set_initial_values([](int, const at::Tensor& out) { out.zero_(); });
  }

  at::Tensor RunChunk(int chunk, const at::Tensor& boundary, const MicroBatch&, UnitHooks& hooks) override {
    hooks.BeforeRoot();
    const at::Tensor x = boundary.defined() ? boundary : parameters_[0].tensor.narrow(0, 0, 1).unsqueeze(0);
    const at::Tensor y = SleepFunction::apply(x, forward_ms_, reinterpret_cast<int64_t>(&slept_us_));
    const bool ends = part_.heads && chunk + 1 == static_cast<int>(part_.chunks.size());
    return hooks.AfterRoot(ends ? y.sum() : y);
  }
  at::Tensor LossSum(const at::Tensor&, const at::Tensor&, UnitHooks& hooks, std::optional<DropoutKey>,
                     const at::Tensor&) override {
    return RunChunk(0, {}, {}, hooks);
  }
  at::Tensor Logits(const at::Tensor&, UnitHooks&) override { return {}; }
  int64_t context() const override { return SleepingSizes().context; }
  int64_t vocabulary() const override { return SleepingSizes().vocabulary; }

  int64_t slept_us() const { return slept_us_; }

 private:
  const int64_t forward_ms_;
  int64_t slept_us_ = 0;
};

}  // namespace

absl::StatusOr<std::string> SleepMain(const PoolRank& rank, const std::string& arguments) {
  std::istringstream in(arguments);
  std::string name;
  int chunks = 1;
  int64_t micro_batches = 1, forward_ms = 1;
  in >> name >> chunks >> micro_batches >> forward_ms;
  ASSIGN_OR_RETURN(const ScheduleKind schedule, ScheduleKindOf(name));
  const int stage = rank.mesh.Coordinate(rank.rank, Axis::kPipeline), stages = rank.mesh.Size(Axis::kPipeline);
  ASSIGN_OR_RETURN(OwnedPipelineChannels channels, JoinPipeline(rank.mesh, /*wraps=*/chunks > 1, rank.options));
  ASSIGN_OR_RETURN(const ModelPart part,
                   PartOfRank(SleepingSizes(), {.stage = stage, .stages = stages, .chunks_per_rank = chunks}));
  SleepingModel model(part, forward_ms);
  ASSIGN_OR_RETURN(const std::unique_ptr<DataParallel> strategy,
                   Parallelize(model, rank.mesh, CommunicatorsOf(rank.groups), {}));
  PipelineExecutor executor({.schedule = schedule, .stage = stage, .stages = stages, .chunks_per_rank = chunks}, model,
                            *strategy, channels.channels);
  PipelineWork work;
  work.num_rounds = micro_batches;
  work.micro_batches.resize(static_cast<size_t>(micro_batches));
  std::iota(work.micro_batches.begin(), work.micro_batches.end(), 0);
  strategy->BeginStep(1);
  RETURN_IF_ERROR(rank.groups.world->Barrier()->Wait());
  const int64_t start = SteadyMicroseconds();
  RETURN_IF_ERROR(executor.RunStep(
      work,
      [](int64_t) {
        return MicroBatch{.inputs = at::zeros({1, 1}, at::kLong)};
      },
      [](int64_t, const at::Tensor&) {}));
  const int64_t end = SteadyMicroseconds();
  RETURN_IF_ERROR(strategy->FinishBackward());
  return absl::StrCat("start_us=", start, "\nend_us=", end, "\nbusy_us=", model.slept_us());
}

namespace {

struct SleepingCase {
  ScheduleKind schedule;
  int chunks;
  int micro_batches;
  double bubble;  // in theory
};

// The share of the step in which the ranks did not sleep, averaged; NaN: a rank failed.
double MeasureBubble(const SleepingCase& each, int stages, int64_t forward_ms) {
  const auto results = MatrixPool().Run({.mesh = {.pp = stages},
                                         .main = "sleep",
                                         .arguments = absl::StrCat(ScheduleName(each.schedule), " ", each.chunks, " ",
                                                                   each.micro_batches, " ", forward_ms / each.chunks)});
  EXPECT_TRUE(results.ok()) << results.status();
  if (!results.ok()) return NAN;
  int64_t start = INT64_MAX, end = 0, busy = 0;
  for (const std::string& result : *results) {
    PoolNumbers numbers = NumbersIn(result);
    start = std::min(start, numbers["start_us"]);
    end = std::max(end, numbers["end_us"]);
    busy += numbers["busy_us"];
  }
  return 1 - static_cast<double>(busy) / static_cast<double>((end - start) * stages);
}

// In theory the bubble of p stages and m micro-batches is (p - 1) / (m + p - 1), and with v chunks per rank
// (p - 1) / (v m + p - 1). If the four stages ran one at a time, it would be 3/4. An exact measurement takes an idle
// machine and long sleeps, so the tolerance is small only if TRAINYARD_ALL_CELLS is set.
TEST(SleepingStages, HaveTheBubbleOfTheSchedule) {
  const SleepingCase cases[] = {{ScheduleKind::kGpipe, 1, 8, 3.0 / 11},
                                {ScheduleKind::kOneForwardOneBackward, 1, 8, 3.0 / 11},
                                {ScheduleKind::kInterleaved, 2, 8, 3.0 / 19}};
  const int64_t forward_ms = RunsAllCells() ? 120 : 40;
  for (const SleepingCase& each : cases) {
    const double tolerance = RunsAllCells() ? 0.05 * each.bubble : 0.2;
    // Other load of the machine disturbs single attempts.
    double nearest = INFINITY;
    for (int attempt = 0; attempt < 5 && !(std::abs(nearest - each.bubble) <= tolerance); ++attempt) {
      const double measured = MeasureBubble(each, 4, forward_ms);
      if (std::abs(measured - each.bubble) < std::abs(nearest - each.bubble)) nearest = measured;
    }
    const std::string name(ScheduleName(each.schedule));
    std::printf("%s: bubble %.4f, in theory %.4f\n", name.c_str(), nearest, each.bubble);
    EXPECT_NEAR(nearest, each.bubble, tolerance) << name;
  }
}

}  // namespace
}  // namespace trainyard
