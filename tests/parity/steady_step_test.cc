// A steady step requests no large memory from the system: it reuses the memory of the step before. All variants of
// malloc and mmap are counted in the rank's process, for any caller: tensors, communicators, LibTorch and MKL.
#include <ATen/Parallel.h>
#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tests/parity/cells.h"
#include "tests/parity/rank_pool.h"
#include "tests/parity/training.h"
#include "tests/parity/training_data.h"
#include "worker/diagnostics/ledger.h"
#include "worker/parallel/parallelize.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TRAINYARD_COUNTS_MALLOC 0  // the sanitizer replaces malloc; only the ledger's count of blocks remains
#else
#define TRAINYARD_COUNTS_MALLOC 1
#endif

namespace {

constexpr size_t kLargeBytes = size_t{64} << 10;  // requests from this size on count as large
std::atomic<int64_t> large_requests = 0, requests = 0;

#if TRAINYARD_COUNTS_MALLOC
void Count(size_t bytes) {
  requests.fetch_add(1, std::memory_order_relaxed);
  if (bytes >= kLargeBytes) large_requests.fetch_add(1, std::memory_order_relaxed);
}

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* block, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}
#endif

}  // namespace

#if TRAINYARD_COUNTS_MALLOC
extern "C" {

void* malloc(size_t bytes) {
  Count(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  Count(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* block, size_t bytes) {
  Count(bytes);
  return __libc_realloc(block, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  Count(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  Count(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** block, size_t alignment, size_t bytes) {
  Count(bytes);
  *block = __libc_memalign(alignment, bytes);
  return *block == nullptr ? ENOMEM : 0;
}
void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) {
  Count(bytes);
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}

}  // extern "C"
#endif

namespace trainyard {
namespace {

constexpr int64_t kSteps = 6;

struct StepRequests {
  int64_t large = 0;   // from the system, by any caller
  int64_t blocks = 0;  // the part of these requests that tensors made
  int64_t all = 0;     // of any size
};

absl::StatusOr<std::string> CountMain(const PoolRank& rank, const std::string& arguments) {
  const TrainingCase training = TrainingCase::Parse(arguments);
  Ledger& ledger = Ledger::ForProcess();
  ParallelOptions options = training.options();
  options.data.ledger = &ledger;
  ASSIGN_OR_RETURN(auto model, NewModel(training.model(), 1, training.type, /*backed=*/false));
  const MeshCommunicators communicators = CommunicatorsOf(rank.groups);
  ASSIGN_OR_RETURN(auto strategy, Parallelize(*model, rank.mesh, communicators, options));
  const int64_t rounds = training.global / training.micro / rank.mesh.world_size();
  std::string text;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const int64_t large = large_requests, all = requests, blocks = ledger.num_blocks_allocated();
    const auto [inputs, targets] = Samples(step, training.micro, model->context());
    const uint64_t tokens = static_cast<uint64_t>(training.global * model->context());
    strategy->BeginStep(tokens);
    for (int64_t round = 1; round <= rounds; ++round) {
      ASSIGN_OR_RETURN(at::Tensor loss, strategy->Forward([&, &in = inputs, &out = targets] {
        return model->LossSum(in, out, *strategy, std::nullopt);
      }));
      RETURN_IF_ERROR(strategy->Backward(loss, round == rounds));
    }
    RETURN_IF_ERROR(strategy->FinishBackward());
    RETURN_IF_ERROR(strategy->Step({.lr = 1e-3, .num_tokens = tokens}).status());
    absl::StrAppend(&text, large_requests - large, " ", ledger.num_blocks_allocated() - blocks, " ", requests - all,
                    "\n");
  }
  return text;
}

// Returns the requests in each step, on rank 0.
std::vector<StepRequests> Steps(RankPool& pool, const MeshShape& mesh, const TrainingCase& training) {
  auto results = pool.Run({.mesh = mesh, .main = "count", .arguments = training.ToString()});
  EXPECT_TRUE(results.ok()) << results.status();
  std::vector<StepRequests> steps;
  if (!results.ok()) return steps;
  std::istringstream in(results->front());
  for (StepRequests step; in >> step.large >> step.blocks >> step.all;) {
    steps.push_back(step);
    std::printf("large %ld, of tensors %ld, all %ld\n", step.large, step.blocks, step.all);
  }
  return steps;
}

TrainingCase CaseOf(Strategy strategy) {
  TrainingCase training{.type = at::kFloat, .global = 16, .micro = 4, .clip_norm = 1, .strategy = strategy};
  training.lab_tiny = true;
  return training;
}

MeshShape MeshOf(Strategy strategy, int world) {
  if (strategy == Strategy::kHsdp) return {.dp_replicate = 2, .dp_shard = 2};
  return strategy == Strategy::kDdp ? MeshShape{.dp_replicate = world} : MeshShape{.dp_shard = world};
}

// Steps are steady from the third step on.
void ExpectSteady(const std::vector<StepRequests>& steps) {
  ASSERT_EQ(steps.size(), static_cast<size_t>(kSteps));
  for (size_t i = 2; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].blocks, 0) << "requests by tensors in step " << i + 1;
    EXPECT_EQ(steps[i].large, 0) << "requests in step " << i + 1;
  }
}

std::vector<Strategy> SteadyStrategies() {
  if (!RunsAllCells()) return {Strategy::kDdp, Strategy::kZero2, Strategy::kFsdp, Strategy::kHsdp};
  return {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3, Strategy::kFsdp, Strategy::kHsdp};
}

class SteadyStep : public testing::TestWithParam<Strategy> {};
INSTANTIATE_TEST_SUITE_P(, SteadyStep, testing::ValuesIn(SteadyStrategies()),
                         [](const testing::TestParamInfo<Strategy>& info) { return StrategyName(info.param); });

TEST_P(SteadyStep, RequestsNoLargeMemory) {
  RankPool pool(4);  // new processes, which have cached nothing yet
  for (const auto& [precision, recompute] :
       {std::pair{"-", RecomputeMode::kNone}, {"-", RecomputeMode::kSelective}, {"bf16", RecomputeMode::kBlocks}}) {
    TrainingCase training = CaseOf(GetParam());
    training.precision = precision;
    training.recompute = recompute;
    SCOPED_TRACE(training.ToString());
    const std::vector<StepRequests> steps = Steps(pool, MeshOf(GetParam(), 2), training);
    ExpectSteady(steps);
    if (recompute != RecomputeMode::kNone || steps.empty()) continue;
    EXPECT_GT(steps[0].blocks, 0) << "the case needs no large memory, so it proves nothing";
  }
  if (GetParam() == Strategy::kHsdp) return;
  ExpectSteady(Steps(pool, MeshOf(GetParam(), 1), CaseOf(GetParam())));
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  trainyard::Ledger::ForProcess();  // counts and caches from the first tensor on
  trainyard::RunAsPoolRankIfRequested(argc, argv, {{"count", trainyard::CountMain}});
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
