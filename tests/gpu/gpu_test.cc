// Tests that need a GPU. A GPU supports only one NCCL rank, so streams and aborts are tested in a world of one; several
// ranks share the GPU through host memory.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/parity/stores.h"
#include "worker/collectives/device_communicator.h"
#include "worker/collectives/group.h"
#include "worker/collectives/single_communicator.h"
#include "worker/mesh/mesh.h"
#include "worker/model/model_factory.h"
#include "worker/model/ops/head_loss.h"
#include "worker/model/ops/row_cross_entropy.h"
#include "worker/numerics/adamw.h"
#include "worker/numerics/gradient_norm.h"
#include "worker/parallel/parallelize.h"
#include "worker/parallel/stream_waits.h"

namespace trainyard {
namespace {

class Gpu : public GpuFixture {
 protected:
  std::unique_ptr<Communicator> NewSingleRankNccl() {
    absl::StatusOr<std::unique_ptr<Communicator>> nccl = cuda_->NewNccl({.rank = 0, .world_size = 1, .device = 0});
    EXPECT_TRUE(nccl.ok()) << nccl.status();
    return nccl.ok() ? *std::move(nccl) : NewSingleCommunicator();
  }
};

// Adds all gradients of one parameter.
class SumSink final : public GradientSink {
 public:
  explicit SumSink(at::Tensor sum) : sum_(std::move(sum)) {}
  Place Claim(int) override { return {.tensor = sum_, .overwrites = false}; }
  void Done(int) override {}
  const at::Tensor& sum() const { return sum_; }

 private:
  at::Tensor sum_;
};

at::Tensor OnGpu(int64_t size, double value, at::ScalarType type = at::kFloat) {
  return at::full({size}, value, at::TensorOptions().dtype(type).device(kGpu));
}

TEST_F(Gpu, SingleRankNccl_SupportsEveryOperationAndType) {
  auto comm = NewDeviceCommunicator(kGpu, NewSingleCommunicator(), NewSingleRankNccl());
  EXPECT_EQ(WarmUp(*comm), absl::OkStatus());
  EXPECT_EQ(WarmUpOn(*comm, kGpu), absl::OkStatus());
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kByte}) {
    at::Tensor in = at::arange(1'003, at::TensorOptions().dtype(at::kLong).device(kGpu)).remainder(5).to(type);
    at::Tensor sum = in.clone(), gathered = at::zeros_like(in), part = at::zeros_like(in);

    EXPECT_EQ(comm->AllReduceSum(sum)->Wait(), absl::OkStatus());
    EXPECT_EQ(comm->AllGather(gathered, in)->Wait(), absl::OkStatus());
    EXPECT_EQ(comm->ReduceScatterSum(part, in)->Wait(), absl::OkStatus());
    EXPECT_EQ(comm->Broadcast(in, 0)->Wait(), absl::OkStatus());

    EXPECT_TRUE(sum.equal(in) && gathered.equal(in) && part.equal(in)) << c10::toString(type);
  }
  EXPECT_EQ(comm->Barrier()->Wait(), absl::OkStatus());
  EXPECT_EQ(comm->MonitoredBarrier(absl::Seconds(30)), absl::OkStatus());
}

// The operation runs after earlier computations on the stream, later computations run after the operation, and the host
// waits for neither.
TEST_F(Gpu, SingleRankNccl_OrdersStreams_AndUsesTheSameMemoryEveryStep) {
  auto comm = NewSingleRankNccl();
  ASSERT_EQ(WarmUpOn(*comm, kGpu), absl::OkStatus());
  const int64_t size = int64_t{1} << 22;
  at::Tensor buffer = comm->NewBuffer(size, at::kFloat), whole = comm->NewBuffer(size, at::kFloat);
  at::Tensor large = at::ones({2048, 2048}, at::TensorOptions().device(kGpu));
  int64_t used = 0;
  for (int step = 0; step < 5; ++step) {
    for (int i = 0; i < 20; ++i) at::matmul(large, large);  // keeps the stream behind the host
    buffer.fill_(step + 1.0);
    auto gather = comm->AllGather(whole, buffer);
    ASSERT_EQ(gather->Wait(), absl::OkStatus());
    whole.mul_(2);
    ASSERT_EQ(comm->AllReduceSum(whole)->Wait(), absl::OkStatus());
    EXPECT_TRUE(whole.eq(2.0 * (step + 1)).all().item<bool>());
    if (step == 1) used = cuda_->MemoryOf(0).reserved_bytes;
  }
  EXPECT_EQ(cuda_->MemoryOf(0).reserved_bytes, used);
  EXPECT_EQ(comm->MonitoredBarrier(absl::Seconds(30)), absl::OkStatus());
  EXPECT_EQ(comm->progress().num_completed, comm->progress().num_started);
}

TEST_F(Gpu, SingleRankNccl_AfterAbort_FailsLaterOperations_AndANewGroupWorks) {
  auto comm = NewSingleRankNccl(), other = NewSingleRankNccl();
  ASSERT_EQ(WarmUpOn(*comm, kGpu), absl::OkStatus());
  ASSERT_EQ(WarmUpOn(*other, kGpu), absl::OkStatus());

  for (Communicator* each : {comm.get(), other.get()}) each->Abort("generation 3 is over");

  for (Communicator* each : {comm.get(), other.get()}) {
    const absl::Status status = each->AllReduceSum(OnGpu(8, 1))->Wait();
    EXPECT_EQ(status, absl::AbortedError("generation 3 is over"));
  }
  comm.reset();
  other.reset();
  EXPECT_EQ(WarmUpOn(*NewSingleRankNccl(), kGpu), absl::OkStatus());
}

// Three ranks, as threads, share one GPU. gloo connects them, as it connects processes that share a GPU.
TEST_F(Gpu, RanksThatShareAGpu_ReduceThroughHostMemory) {
  constexpr int kWorld = 3;
  MemoryStore store;
  std::vector<absl::Status> statuses(kWorld);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorld; ++rank) {
    ranks.emplace_back([&, rank] {
      statuses[static_cast<size_t>(rank)] = [&]() -> absl::Status {
        ASSIGN_OR_RETURN(CudaDevice gpu, cuda_->Use(0));
        auto refuse = [](int, int, const std::string&) -> absl::StatusOr<std::unique_ptr<Communicator>> {
          return absl::InternalError("NCCL does not support ranks that share a GPU");
        };
        ASSIGN_OR_RETURN(auto comm,
                         NewGroup({.world_size = kWorld,
                                   .rank = rank,
                                   .store = &store,
                                   .shared_memory = false,
                                   .timeout = absl::Minutes(1),
                                   .device = GroupDevice{.device = kGpu, .name = gpu.uuid, .join = refuse}}));
        RETURN_IF_ERROR(WarmUpOn(*comm, kGpu));
        at::Tensor in = OnGpu(3 * 1'000, rank + 1), part = OnGpu(1'000, 0);
        RETURN_IF_ERROR(comm->ReduceScatterSum(part, in)->Wait());
        const bool is_right = part.is_cuda() && part.eq(6).all().item<bool>();
        RETURN_IF_ERROR(comm->MonitoredBarrier(absl::Minutes(1)));
        return is_right ? absl::OkStatus() : absl::InternalError("the sum is not 6");
      }();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const absl::Status& status : statuses) EXPECT_EQ(status, absl::OkStatus());
}

// Returns the losses of three steps of a small model on `device`, in a world of one.
absl::StatusOr<std::vector<double>> LossesOn(at::Device device, std::unique_ptr<Communicator> comm,
                                             const ParallelOptions& options) {
  ASSIGN_OR_RETURN(auto model, NewModel({.layers = 2, .heads = 2, .width = 32, .context = 16, .vocabulary = 64}, 1,
                                        at::kFloat, /*backed=*/false));
  if (!device.is_cpu()) model->PlaceOn(device);
  ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create({}, 1));
  ASSIGN_OR_RETURN(
      auto strategy,
      Parallelize(*model, mesh, {.job = comm.get(), .data = comm.get(), .shard = comm.get(), .replicate = comm.get()},
                  options));
  const at::Tensor tokens = at::arange(4 * 16 + 1, at::kLong).mul(7).remainder(64).to(device);
  const at::Tensor inputs = tokens.narrow(0, 0, 64).view({4, 16}), targets = tokens.narrow(0, 1, 64).view({4, 16});
  std::vector<double> losses;
  for (int step = 1; step <= 3; ++step) {
    strategy->BeginStep(64);
    ASSIGN_OR_RETURN(at::Tensor loss,
                     strategy->Forward([&] { return model->LossSum(inputs, targets, *strategy, std::nullopt); }));
    RETURN_IF_ERROR(strategy->Backward(loss, /*last=*/true));
    RETURN_IF_ERROR(strategy->FinishBackward());
    RETURN_IF_ERROR(strategy->Step({.lr = 1e-2, .num_tokens = 64}).status());
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// Some options put state in host memory, or recompute activations.
TEST_F(Gpu, EachStrategy_MatchesTheLossesOfTheCpu) {
  const ParallelOptions all[] = {
      {.data = {.strategy = Strategy::kDdp}},
      {.data = {.strategy = Strategy::kZero2}},
      {.data = {.strategy = Strategy::kFsdp}},
      {.recompute = {.mode = RecomputeMode::kSelective}, .data = {.strategy = Strategy::kFsdp}},
      {.data = {.strategy = Strategy::kDdp, .offload = {.optimizer = true}}, .update = {.tile_elements = 512}},
      {.data = {.strategy = Strategy::kFsdp, .offload = {.optimizer = true, .parameters = true}},
       .update = {.tile_elements = 512}}};
  const auto on_cpu = LossesOn(at::kCPU, NewSingleCommunicator(), all[0]);
  ASSERT_TRUE(on_cpu.ok()) << on_cpu.status();

  for (const ParallelOptions& options : all) {
    const auto on_gpu =
        LossesOn(kGpu, NewDeviceCommunicator(kGpu, NewSingleCommunicator(), NewSingleRankNccl()), options);

    ASSERT_TRUE(on_gpu.ok()) << on_gpu.status();
    for (size_t i = 0; i < on_cpu->size(); ++i) EXPECT_NEAR((*on_gpu)[i], (*on_cpu)[i], 1e-4 * (*on_cpu)[i]);
  }
}

// The reference is the CPU's kernel, whose bits are specified.
TEST_F(Gpu, NormAndAdamW_MatchTheCpu) {
  const int64_t size = 100'003;
  at::Tensor gradients = at::arange(size, at::kFloat).sin(), start = at::arange(size, at::kFloat).cos();
  at::Tensor on_cpu = start.clone(), on_gpu = start.to(kGpu), weights = on_gpu.to(at::kBFloat16);
  AdamW cpu({}, {{.parameters = on_cpu, .gradients = gradients, .decays = true}});
  AdamW gpu({}, {{.parameters = on_gpu, .gradients = gradients.to(kGpu), .decays = true, .weights = weights}});

  EXPECT_NEAR(SumOfSquares(gradients.to(kGpu)), SumOfSquares(gradients), 1e-7 * SumOfSquares(gradients));
  EXPECT_NEAR(SumOfSquares({gradients.to(kGpu), start.to(kGpu)}), SumOfSquares({gradients, start}), 1e-3);
  cpu.Step(1e-3, 0.125);
  gpu.Step(1e-3, 0.125);

  EXPECT_LT((on_gpu.cpu() - on_cpu).abs().max().item<double>(), 1e-6);
  EXPECT_TRUE(weights.equal(on_gpu.to(at::kBFloat16)));
}

TEST_F(Gpu, StreamWaits_MeasureWhatTheStreamDoesBetweenTheirEvents_UpToTheLastEnd) {
  StreamWaits waits(kGpu);
  const at::Tensor matrix = OnGpu(int64_t{1} << 22, 0).view({2048, 2048});
  const auto wait = [&] {
    waits.BeforeWait();
    for (int i = 0; i < 5; ++i) at::matmul(matrix, matrix);
    waits.AfterWait();
  };
  const auto await_device = [&] { EXPECT_EQ(matrix.sum().item<float>(), 0); };

  waits.Begin();
  wait();
  waits.End();
  await_device();
  EXPECT_GT(waits.Seconds(), 0);

  waits.Begin();
  waits.End();
  wait();
  await_device();
  EXPECT_EQ(waits.Seconds(), 0) << "the wait came after the last End";
}

// The reference is LibTorch's kernels on the CPU.
TEST_F(Gpu, CrossEntropyOfRows_MatchesTheCpu) {
  ASSERT_EQ(cuda_->Use(0)->slow_kernels_reason, "");
  constexpr int64_t kRows = 300, kColumns = 10'001, kPadded = 10'048;
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-4}, {at::kBFloat16, 1e-2}, {at::kHalf, 2e-3}}) {
    at::Tensor scores = at::arange(kRows * kPadded, at::kDouble).mul(0.7).sin().mul(9).view({kRows, kPadded}).to(type);
    at::Tensor targets = at::arange(kRows, at::kLong).mul(101).remainder(kColumns), on_gpu = scores.to(kGpu);
    targets.narrow(0, 5, 3).fill_(-1);
    for (int64_t row = 10; row < 20; ++row) scores[row][row * 101 % kColumns] = static_cast<double>(row) + 5;
    on_gpu.copy_(scores);
    const at::Tensor losses = CrossEntropyOfRows(scores.to(at::kDouble), targets, kColumns, 1, false);
    at::Tensor gradients = scores.to(at::kDouble);
    CrossEntropyOfRows(gradients, targets, kColumns, 16, true);

    const at::Tensor only_losses = CrossEntropyOfRows(on_gpu, targets.to(kGpu), kColumns, 16, false);
    EXPECT_TRUE(on_gpu.cpu().narrow(1, 0, kColumns).equal(scores.narrow(1, 0, kColumns)));
    const at::Tensor with_gradients = CrossEntropyOfRows(on_gpu, targets.to(kGpu), kColumns, 16, true);

    EXPECT_TRUE(only_losses.equal(with_gradients));
    EXPECT_LT((only_losses.cpu().to(at::kDouble) - losses).abs().max().item<double>(), 2e-5) << type;
    // The gradient of a confident target is factor * (p - 1), and fp32 represents p with an error of up to 1.2e-7.
    EXPECT_TRUE(at::allclose(on_gpu.cpu().to(at::kDouble), gradients, /*rtol=*/tolerance, /*atol=*/4e-6)) << type;
  }
}

// The reference is the CPU in fp64.
TEST_F(Gpu, HeadLoss_MatchesTheCpu_WithAndWithoutSink) {
  constexpr int64_t kRows = 200, kVocabulary = 9'001, kWidth = 48;
  const at::Tensor x = at::arange(kRows * kWidth, at::kDouble).mul(0.37).sin().view({kRows, kWidth});
  const at::Tensor weight = at::arange(kVocabulary * kWidth, at::kDouble).mul(0.61).cos().view({kVocabulary, kWidth});
  const at::Tensor targets = at::arange(kRows, at::kLong).mul(37).remainder(kVocabulary);
  const auto run = [&](at::Device device, at::ScalarType type, GradientSink* sink) {
    const auto copy_of = [&](const at::Tensor& tensor) {
      return tensor.to(device, type, /*non_blocking=*/false, /*copy=*/true).requires_grad_(true);
    };
    at::Tensor own_x = copy_of(x), own_weight = copy_of(weight);
    HeadLoss(own_x, {own_weight, 0}, targets.to(device), at::kFloat, sink, /*max_elements=*/64 * 9'024)
        .mul(2)
        .backward();
    return std::pair{own_x.grad().cpu().to(at::kDouble),
                     own_weight.grad().defined() ? own_weight.grad().cpu().to(at::kDouble) : at::Tensor()};
  };
  const auto near = [](const at::Tensor& found, const at::Tensor& exact, double tolerance) {
    return (found - exact).abs().max().item<double>() < tolerance * exact.abs().max().item<double>();
  };
  const auto [exact_x, exact_weight] = run(at::kCPU, at::kDouble, nullptr);
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 3e-2}, {at::kHalf, 5e-3}}) {
    const auto [grad_x, grad_weight] = run(kGpu, type, nullptr);
    EXPECT_TRUE(near(grad_x, exact_x, tolerance) && near(grad_weight, exact_weight, tolerance)) << type;

    SumSink sink(at::zeros({kVocabulary, kWidth}, at::TensorOptions().device(kGpu)));
    for (int pass = 1; pass <= 2; ++pass) {
      const auto [with_sink_x, none] = run(kGpu, type, &sink);
      EXPECT_FALSE(none.defined());
      EXPECT_TRUE(near(with_sink_x, exact_x, tolerance)) << type;
      EXPECT_TRUE(near(sink.sum().cpu().to(at::kDouble), exact_weight * pass, tolerance)) << type << " pass " << pass;
    }
  }
}

TEST_F(Gpu, CrossEntropyOfRows_IsNotFinite_IfAScoreIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    at::Tensor scores = at::ones({3, 128}, at::TensorOptions().dtype(at::kBFloat16).device(kGpu));
    scores.select(0, 1).select(0, 77).fill_(bad);

    const at::Tensor losses =
        CrossEntropyOfRows(scores, at::ones({3}, at::TensorOptions().dtype(at::kLong).device(kGpu)),
                           /*columns=*/100, /*factor=*/1, /*writes_gradients=*/true);

    EXPECT_TRUE(losses.isfinite().cpu().equal(at::tensor({1, 0, 1}).to(at::kBool)));
    EXPECT_TRUE(scores.select(0, 1).narrow(0, 0, 100).isnan().all().item<bool>());
    EXPECT_TRUE(scores.select(0, 2).isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace trainyard
