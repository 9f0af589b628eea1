// Checks the memory that a rank needs to load a checkpoint, and the bytes that it reads. In addition to its state, a
// rank needs one piece, whatever layout wrote the checkpoint. The memory is counted exactly: tensors by the ledger,
// everything else by this program's operator new.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <stdlib.h>

#include <atomic>
#include <map>
#include <new>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "tests/parity/rank_pool.h"
#include "tests/parity/training.h"
#include "tests/unit/temporary_folder.h"
#include "worker/diagnostics/ledger.h"
#include "worker/parallel/parallelize.h"
#include "worker/saving/state.h"

namespace trainyard {
namespace {

constexpr int64_t kMiB = 1 << 20;

// Counts the memory from operator new that has not been freed.
PeakCounter& OperatorNewBytes() {
  static PeakCounter operator_new_bytes;
  return operator_new_bytes;
}

}  // namespace
}  // namespace trainyard

void* operator new(size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  trainyard::OperatorNewBytes().Add(static_cast<int64_t>(malloc_usable_size(memory)));
  return memory;
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept {
  if (memory != nullptr) trainyard::OperatorNewBytes().Add(-static_cast<int64_t>(malloc_usable_size(memory)));
  std::free(memory);
}
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
void operator delete[](void* memory, size_t) noexcept { operator delete(memory); }

namespace trainyard {
namespace {

// A block has 3 MiB in fp32, and its largest tensors have 1 MiB.
const ModelSizes kModel = {.layers = 6, .heads = 4, .width = 256, .context = 16, .vocabulary = 64};

struct Layout {
  Strategy strategy = Strategy::kFsdp;
  std::string precision = "fp32";
  std::string folder = {};
  std::string ToString() const { return absl::StrCat(static_cast<int>(strategy), " ", precision, " ", folder); }
  static Layout Parse(const std::string& text) {
    std::istringstream in(text);
    int strategy = 0;
    Layout layout;
    in >> strategy >> layout.precision >> layout.folder;
    layout.strategy = static_cast<Strategy>(strategy);
    return layout;
  }
};

struct Built {
  std::unique_ptr<Model> model;
  std::unique_ptr<DataParallel> strategy;
};

absl::StatusOr<Built> Build(const PoolRank& rank, const Layout& layout) {
  Built built;
  ASSIGN_OR_RETURN(built.model, NewModel(kModel, 1, at::kFloat, /*backed=*/false));
  ASSIGN_OR_RETURN(Precision precision, ParsePrecision(layout.precision));
  const MeshCommunicators communicators = CommunicatorsOf(rank.groups);
  ASSIGN_OR_RETURN(
      built.strategy,
      Parallelize(*built.model, rank.mesh, communicators,
                  {.data = {.strategy = layout.strategy, .precision = precision, .ledger = &Ledger::ForProcess()}}));
  return built;
}

absl::StatusOr<std::string> SaveMain(const PoolRank& rank, const std::string& arguments) {
  const Layout layout = Layout::Parse(arguments);
  ASSIGN_OR_RETURN(Built built, Build(rank, layout));
  RETURN_IF_ERROR(SaveTo(layout.folder, 1, rank, built.strategy->state()));
  return std::string();
}

// Returns one "name=bytes" per line. For tensors, `built` is the peak during the construction, `held` the bytes after
// it, and `tensors` the additional peak during the load. `others` is the additional peak of all other memory. `read` is
// the number of bytes read.
absl::StatusOr<std::string> LoadMain(const PoolRank& rank, const std::string& arguments) {
  const Layout layout = Layout::Parse(arguments);
  Ledger& ledger = Ledger::ForProcess();
  ledger.ResetPeaks();
  const int64_t empty = ledger.in_use().now();
  ASSIGN_OR_RETURN(Built built, Build(rank, layout));
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                   Checkpoint::OpenUnverified(JoinPath(layout.folder, StepFolderName(1))));
  checkpoint->BeginVerifying(rank.rank, rank.mesh.world_size());
  const int64_t built_peak = ledger.in_use().peak() - empty;
  const int64_t tensors = ledger.in_use().now(), operator_new_bytes = OperatorNewBytes().now();
  ledger.ResetPeaks();
  OperatorNewBytes().ResetPeak();
  RETURN_IF_ERROR(LoadTensors(*checkpoint, built.strategy->state()));
  RETURN_IF_ERROR(checkpoint->FinishVerifying());
  return absl::StrCat("built=", built_peak, "\nheld=", tensors - empty, "\ntensors=", ledger.in_use().peak() - tensors,
                      "\nothers=", OperatorNewBytes().peak() - operator_new_bytes, "\nread=", checkpoint->bytes_read());
}

RankPool& Pool() {
  static RankPool pool(4);
  return pool;
}

using Measurements = PoolNumbers;

std::vector<Measurements> RunAll(const MeshShape& mesh, const char* main, const Layout& layout) {
  auto results = Pool().Run({.mesh = mesh, .main = main, .arguments = layout.ToString()});
  EXPECT_TRUE(results.ok()) << results.status();
  std::vector<Measurements> measurements;
  for (const std::string& result : results.value_or(std::vector<std::string>{})) {
    measurements.push_back(NumbersIn(result));
  }
  return measurements;
}

struct CheckpointSizes {
  int64_t files = 0, largest_tensor = 0, block = 0;
};
CheckpointSizes SizesIn(const std::string& folder) {
  auto checkpoint = Checkpoint::OpenUnverified(JoinPath(folder, StepFolderName(1)));
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  CheckpointSizes written;
  for (const ManifestFile& file : (*checkpoint)->manifest().files) written.files += static_cast<int64_t>(file.bytes);
  for (const ManifestTensor& tensor : (*checkpoint)->manifest().tensors) {
    const int64_t bytes = static_cast<int64_t>(*CountElements(tensor.shape) * DtypeBytes(tensor.dtype));
    written.largest_tensor = std::max(written.largest_tensor, bytes);
    if (tensor.role == kParameterRole && tensor.name.starts_with("h.0.")) written.block += bytes;
  }
  return written;
}

struct LayoutChange {
  const char* name;
  MeshShape from_mesh;
  Strategy from;
  MeshShape mesh;
  Strategy to;
  const char* precision = "fp32";
};

class LoadMemory : public testing::TestWithParam<LayoutChange> {};
INSTANTIATE_TEST_SUITE_P(
    , LoadMemory,
    testing::Values(
        LayoutChange{"four_fsdp_to_three_ddp", {.dp_shard = 4}, Strategy::kFsdp, {.dp_replicate = 3}, Strategy::kDdp},
        LayoutChange{"one_to_four_fsdp", {.dp_replicate = 1}, Strategy::kDdp, {.dp_shard = 4}, Strategy::kFsdp},
        LayoutChange{"four_fsdp_to_four", {.dp_shard = 4}, Strategy::kFsdp, {.dp_shard = 4}, Strategy::kFsdp},
        LayoutChange{"to_ddp_in_bf16", {.dp_shard = 4}, Strategy::kFsdp, {.dp_replicate = 3}, Strategy::kDdp, "bf16"},
        LayoutChange{"to_zero1_in_bf16", {.dp_shard = 4}, Strategy::kFsdp, {.dp_shard = 2}, Strategy::kZero1, "bf16"},
        LayoutChange{
            "to_hsdp", {.dp_shard = 3}, Strategy::kZero2, {.dp_replicate = 2, .dp_shard = 2}, Strategy::kHsdp}),
    [](const testing::TestParamInfo<LayoutChange>& info) { return std::string(info.param.name); });

TEST_P(LoadMemory, InAnyLayout_IsTheStateAndOnePiece) {
  const LayoutChange& change = GetParam();
  TemporaryFolder folder;
  RunAll(change.from_mesh, "save", {.strategy = change.from, .folder = folder.path()});
  const CheckpointSizes written = SizesIn(folder.path());
  ASSERT_GE(written.files, 50 * kMiB);
  ASSERT_EQ(written.largest_tensor, kMiB);

  int64_t read = 0;
  for (const Measurements& rank : RunAll(change.mesh, "load", {change.to, change.precision, folder.path()})) {
    // `tensors` is one tensor in the type of the master weights, if the weights have another type. `others` is one
    // piece, which is the unit of verification, and names.
    const bool converts = std::string(change.precision) == "bf16";
    EXPECT_LE(rank.at("tensors"), converts ? written.largest_tensor + 4096 : 0);
    EXPECT_LE(rank.at("others"), written.largest_tensor + static_cast<int64_t>(kReadBytes) + kMiB / 8);
    EXPECT_GE(rank.at("others"), kMiB / 4) << "so little memory shows that the counter does not work";
    // Before loading, a rank initialises only its own state, and one block that it sends to the other ranks.
    const bool shards = change.to == Strategy::kFsdp || change.to == Strategy::kHsdp;
    if (shards) {
      EXPECT_LE(rank.at("built"), rank.at("held") + written.block + kMiB);
    }
    EXPECT_LE(rank.at("read"), 2 * written.files);
    read += rank.at("read");
  }
  // If the layout that wrote the checkpoint loads it, all ranks together read every byte once.
  if (std::string(change.name) == "four_fsdp_to_four") {
    EXPECT_EQ(read, written.files);
  }
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  trainyard::Ledger::ForProcess();
  trainyard::RunAsPoolRankIfRequested(argc, argv, {{"save", trainyard::SaveMain}, {"load", trainyard::LoadMain}});
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
