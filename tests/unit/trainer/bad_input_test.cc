// What ranks refuse or skip because of their input: a loss that is not finite on one rank only, also on the last stage
// of a pipeline, and offloading more than host memory can hold. Also how activations on a GPU are counted, and what
// rank 0 reports about the run folder of a later generation.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/link/fake_link.h"
#include "tests/unit/trainer/small_job.h"
#include "worker/parallel/parallelize.h"
#include "worker/trainer/device.h"
#include "worker/trainer/rank.h"
#include "worker/trainer/rank_strategy.h"
#include "worker/trainer/run.h"
#include "worker/trainer/run_folder.h"
#include "worker/trainer/trainer.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// The loss is NaN in the passes, counted from 0, for which `corrupts` returns true. Their gradients stay finite, so
// that other ranks learn of the NaN only because this rank rejects the step.
class CorruptModel final : public Model {
 public:
  CorruptModel(std::unique_ptr<Model> inner, std::function<bool(int pass)> corrupts)
      : inner_(std::move(inner)), corrupts_(std::move(corrupts)) {
    units_ = inner_->units();
    parameters_ = inner_->parameters();
    boxes_ = inner_->boxes();
    description_ = inner_->description();
    part_ = inner_->part();
  }
  at::Tensor RunChunk(int chunk, const at::Tensor& boundary, const MicroBatch& batch, UnitHooks& hooks) override {
    at::Tensor y = inner_->RunChunk(chunk, boundary, batch, hooks);
    return corrupts_(pass_++) ? y + std::nan("") : y;
  }
  at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& targets, UnitHooks& hooks,
                     std::optional<DropoutKey> dropout, const at::Tensor& starts) override {
    return inner_->LossSum(inputs, targets, hooks, dropout, starts);
  }
  at::Tensor Logits(const at::Tensor& inputs, UnitHooks& hooks) override { return inner_->Logits(inputs, hooks); }
  int64_t context() const override { return inner_->context(); }
  int64_t vocabulary() const override { return inner_->vocabulary(); }

 private:
  const std::unique_ptr<Model> inner_;
  const std::function<bool(int)> corrupts_;
  int pass_ = 0;
};

// What each rank of a job ended with.
struct CorruptRun {
  FakeStore store;
  std::vector<std::unique_ptr<FakeLink>> links;
  std::vector<std::ostringstream> logs;
  std::vector<absl::Status> ends;
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

  // Two stages; the job stops after three steps in a row without an update.
  StartOrder PipelineOrder(const std::string& run, const char* strategy, int ranks, const char* schedule) {
    StartOrder order = Order(run, strategy);
    order.world_size = order.local_world_size = ranks;
    order.config.nonfinite_limit = 3;
    order.config.parallel.stages = 2;
    order.config.parallel.schedule = schedule;
    return order;
  }

  // Trains with threads as ranks; `corrupts` chooses the passes of `corrupt_rank` that CorruptModel changes.
  static std::unique_ptr<CorruptRun> Run(const StartOrder& order, int corrupt_rank,
                                         const std::function<bool(int pass)>& corrupts) {
    auto run = std::make_unique<CorruptRun>();
    const auto ranks = static_cast<size_t>(order.world_size);
    run->logs.resize(ranks);
    run->ends.resize(ranks);
    for (size_t rank = 0; rank < ranks; ++rank) run->links.push_back(std::make_unique<FakeLink>(&run->store));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        StartOrder own = order;
        own.rank = static_cast<int>(rank);
        auto made = PrepareRank(own, *run->links[rank], FileSystem::Real(), run->logs[rank]);
        run->ends[rank] = made.status();
        ASSERT_TRUE(made.ok()) << made.status();
        if (own.rank == corrupt_rank) Corrupt(own, corrupts, **made);
        Trainer trainer(own, **made, *run->links[rank], FileSystem::Real(), run->logs[rank], [] { return false; });
        run->ends[rank] = trainer.Run().status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return run;
  }

  static void Corrupt(const StartOrder& order, const std::function<bool(int pass)>& corrupts, Rank& rank) {
    const TrainConfig::Parallel& parallel = order.config.parallel;
    rank.model = std::make_unique<CorruptModel>(std::move(rank.model), corrupts);
    rank.executor = NewExecutor(*MeshOf(order), order.rank, {.schedule = *ScheduleKindOf(parallel.schedule)},
                                *rank.model, *rank.strategy, rank.channels.channels);
  }

  // Steps 3 to 5 have no update on any rank, and the rank whose loss is not finite reports the cause.
  static void ExpectStopInStep5(const CorruptRun& run, int corrupt_rank, int micro_batch) {
    for (size_t rank = 0; rank < run.ends.size(); ++rank) {
      const absl::Status& end = run.ends[rank];
      const std::string what = "train.nonfinite_limit: 3 steps in a row, the last of them step 5, had no update: ";
      if (static_cast<int>(rank) == corrupt_rank) {
        EXPECT_EQ(end.code(), absl::StatusCode::kFailedPrecondition) << end;
        EXPECT_THAT(std::string(end.message()), HasSubstr(absl::StrCat(what, "the loss of micro-batch ", micro_batch,
                                                                       " on rank ", rank, " is not finite")));
      } else {
        EXPECT_EQ(end.code(), absl::StatusCode::kAborted) << end;
        EXPECT_THAT(std::string(end.message()), HasSubstr(absl::StrCat(what, "another rank reports the cause")));
      }
    }
    // The last step's report waits for the sums of the next step.
    ASSERT_THAT(run.links[0]->steps(), SizeIs(4));
    for (const StepRecord& step : run.links[0]->steps())
      EXPECT_EQ(step.skipped, step.step >= 3) << "step " << step.step;
    EXPECT_THAT(run.logs[0].str(), HasSubstr("step 3: a loss or gradient is not finite; every rank skips the update"));
  }
};

// From step 3 on, the loss of rank 1's second micro-batch of three is NaN: micro-batch 3 of the step, counted from 0.
TEST_F(BadInputTest, LossThatIsNotFiniteOnOneRank_SkipsTheUpdateOnAllRanksAndThatRankReportsTheCause) {
  for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"}) {
    StartOrder order = Order(strategy, strategy);
    order.config.nonfinite_limit = 3;

    const auto run = Run(order, /*corrupt_rank=*/1, [](int pass) { return pass >= 6 && pass % 3 == 1; });

    SCOPED_TRACE(strategy);
    ExpectStopInStep5(*run, /*corrupt_rank=*/1, /*micro_batch=*/3);
  }
}

struct PipelineCell {
  const char* strategy;
  int ranks;         // of a pipeline of two stages
  int corrupt_rank;  // on the last stage
  int passes;        // of a rank in a step of six micro-batches
  const char* schedule = "1f1b";
};

constexpr PipelineCell kPipelineCells[] = {
    {"ddp", 2, 1, 6}, {"ddp", 2, 1, 6, "gpipe"}, {"ddp", 2, 1, 6, "zero_bubble"}, {"ddp", 4, 3, 3}, {"zero1", 4, 3, 3},
};

std::string NameOf(const PipelineCell& cell) { return absl::StrCat(cell.strategy, "_", cell.ranks, cell.schedule); }

// From step 3 on, the loss of the second micro-batch of one rank of the last stage is not finite. Only that rank sees
// it.
TEST_F(BadInputTest, LossThatIsNotFiniteOnTheLastStage_StopsEveryStageInTheSameStep) {
  for (const PipelineCell& cell : kPipelineCells) {
    SCOPED_TRACE(NameOf(cell));
    const StartOrder order = PipelineOrder(NameOf(cell), cell.strategy, cell.ranks, cell.schedule);
    const auto corrupts = [&](int pass) { return pass >= 2 * cell.passes && pass % cell.passes == 1; };

    const auto run = Run(order, cell.corrupt_rank, corrupts);

    ExpectStopInStep5(*run, cell.corrupt_rank, /*micro_batch=*/cell.passes == 6 ? 1 : 3);
  }
}

TEST_F(BadInputTest, LossThatIsNotFiniteOnTheLastStageInOneStep_SkipsOnlyThisUpdateOnEveryStage) {
  for (const PipelineCell& cell : kPipelineCells) {
    SCOPED_TRACE(NameOf(cell));
    StartOrder order = PipelineOrder(NameOf(cell), cell.strategy, cell.ranks, cell.schedule);
    order.config.steps = 6;
    const auto corrupts = [&](int pass) { return pass == 2 * cell.passes + 1; };

    const auto run = Run(order, cell.corrupt_rank, corrupts);

    for (const absl::Status& end : run->ends) EXPECT_EQ(end, absl::OkStatus());
    ASSERT_THAT(run->links[0]->steps(), SizeIs(6));
    for (const StepRecord& step : run->links[0]->steps()) {
      EXPECT_EQ(step.skipped, step.step == 3) << "step " << step.step;
      EXPECT_EQ(std::isfinite(step.loss), step.step != 3) << "step " << step.step;
    }
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
  absl::Status CompileKernels(int, int) override { return absl::UnimplementedError("not called"); }
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
  EXPECT_EQ(CheckPrecision(RankDevice(), stochastic), absl::OkStatus()) << "a CPU must support it";
}

TEST(WhySlow, NamesRanksThatShareAGpu_OncePerHost) {
  NoPlugin plugin;
  const RankDevice device{.device = at::Device(at::kCUDA, 0), .cuda = &plugin, .gpu = {}, .num_gpus = 7};
  StartOrder order;
  order.host = "w1";
  order.local_world_size = 8;

  EXPECT_THAT(WhySlow(order, device), ElementsAre(HasSubstr("the 8 ranks on host w1 share 7 GPUs")));

  order.local_rank = 1;
  EXPECT_THAT(WhySlow(order, device), SizeIs(0));
  order.local_rank = 0;
  order.local_world_size = 7;
  EXPECT_THAT(WhySlow(order, device), SizeIs(0));
  EXPECT_THAT(WhySlow(order, RankDevice()), SizeIs(0));
}

TEST(ReportFailure, OfAHostWithoutAGpuThatWorks_RefusesNothing_BecauseAnotherHostMayHaveOne) {
  const absl::Status missing = absl::FailedPreconditionError("no GPU can be used on this machine");
  FakeLink link, other_link;
  std::ostringstream log;

  EXPECT_EQ(ReportFailure(GpuMissing(missing), 0, link, log), kExitCannotRun);

  EXPECT_EQ(log.str(), "no GPU can be used on this machine\n") << "the coordinator shows the last line";
  EXPECT_THAT(link.FactsOf<RefusedFact>(), SizeIs(0));
  EXPECT_EQ(ReportFailure(missing, 0, other_link, log), kExitRefused);
}

class UnusableFolderTest : public SmallRunTest {};

TEST_F(UnusableFolderTest, DoesNotRefuseTheJob_IfACheckpointIsRecorded) {
  std::filesystem::create_symlink(folder_ / "loop", folder_ / "loop");
  FakeLink link;
  StartOrder order = Order("loop", 5);
  order.generation = 2;
  order.restart_step = 40;

  EXPECT_EQ(Run(order, link), kExitFailed) << log_.str();

  ASSERT_THAT(link.FactsOf<RefusedFact>(), SizeIs(1));
  EXPECT_TRUE(link.FactsOf<RefusedFact>()[0].checkpoint_missing);
}

TEST(CountActivations, CountsAsActivationsTheGpuMemoryThatNoOtherKindAccountsFor) {
  std::vector<KindUse> uses = {{MemoryKind::kParameters, 100, 120},
                               {MemoryKind::kActivations, 1, 2},
                               {MemoryKind::kHost, 1000, 1000},
                               {MemoryKind::kReserved, 50, 60},
                               {MemoryKind::kSnapshots, 2000, 2000}};

  CountActivations({.used_bytes = 170, .used_peak_bytes = 400}, uses);

  EXPECT_EQ(uses[1].bytes, 20);
  EXPECT_EQ(uses[1].peak_bytes, 250);
  EXPECT_EQ(uses[0].bytes, 100) << "the other kinds must not change";
  CountActivations({.used_bytes = 10, .used_peak_bytes = 10}, uses);
  EXPECT_EQ(uses[1].bytes, 0) << "must not be negative";
}

using LaterGenerationTest = SmallRunTest;

TEST_F(LaterGenerationTest, ThatHasEnded_IsReportedByRank0_AndNothingIsRefused) {
  StartOrder order = Order("run", 5);
  order.generation = 2;
  const RunFolder::Options later{
      .folder = order.config.checkpoint_dir, .job_id = order.job_id, .generation = 7, .wait = absl::ZeroDuration()};
  {
    auto folder = RunFolder::Acquire(later);
    ASSERT_TRUE(folder.ok()) << folder.status();
    ASSERT_TRUE((*folder)->Claim().ok());
    FakeLink link;
    EXPECT_EQ(Run(order, link), kExitAborted) << log_.str();
    EXPECT_THAT(link.FactsOf<RefusedFact>(), SizeIs(0)) << "the later generation holds the lock, so it may run";
  }
  FakeLink link;
  EXPECT_EQ(Run(order, link), kExitAborted) << log_.str();
  ASSERT_THAT(link.FactsOf<RefusedFact>(), SizeIs(1));
  EXPECT_EQ(link.FactsOf<RefusedFact>()[0].later_generation, 7u);
  EXPECT_THAT(link.FactsOf<RefusedFact>()[0].message, HasSubstr("belongs to generation 7 of job abcdefgh"));
}

}  // namespace
}  // namespace trainyard
