// Saves and loads of models that are divided into parts: other layouts of stages, tensor ranks and data ranks read what
// one layout wrote, and a save compares the copies that several ranks hold.
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/part.h"
#include "checkpoint/reader.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/status_macros.h"
#include "tests/parity/stores.h"
#include "tests/unit/temporary_folder.h"
#include "worker/collectives/group.h"
#include "worker/parallel/data_parallel.h"
#include "worker/parallel/recompute.h"
#include "worker/saving/save_work.h"
#include "worker/saving/state.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

// The vocabulary is odd, so two tensor ranks hold different numbers of rows, and their flat groups have different
// bounds.
const ModelSizes kGpt2Sizes = {.layers = 3, .heads = 2, .width = 12, .context = 8, .vocabulary = 37};
const ModelSizes kLlamaSizes = {.family = ModelFamily::kLlama,
                                .layers = 4,
                                .heads = 4,
                                .width = 16,
                                .context = 8,
                                .vocabulary = 41,
                                .kv_heads = 2,
                                .head_width = 4,
                                .inner = 20,
                                .norm_eps = 1e-5,
                                .tied = false};

// A part that has parameters and cannot run.
class PartOnly final : public Model {
 public:
  PartOnly(const ModelSizes& sizes, const ModelPart& part) {
    AddParameters(DescribeModel(sizes), part, at::kFloat);
    set_initial_values([](int number, const at::Tensor& out) { out.fill_(number); });
  }
  at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor&, UnitHooks&, std::optional<DropoutKey>,
                     const at::Tensor&) override {
    return inputs;
  }
  at::Tensor Logits(const at::Tensor& inputs, UnitHooks&) override { return inputs; }
  int64_t context() const override { return 8; }
  int64_t vocabulary() const override { return 8; }
};

struct Layout {
  ModelSizes sizes = kGpt2Sizes;
  int stages = 1, tensor = 1, replicate = 1, shard = 1;
  int chunks_per_rank = 1;
  Strategy strategy = Strategy::kZero1;

  int world() const { return stages * tensor * replicate * shard; }
  std::string Text() const {
    return absl::StrCat(stages, " stages of ", chunks_per_rank, " chunks, tensor ", tensor, ", ", replicate, " x ",
                        shard, " ", StrategyName(strategy));
  }
};

// One rank of a layout, with its state. Ranks are ordered by stage, replicate, shard, tensor.
struct PartRank {
  int rank = 0;
  Communicator* job = nullptr;
  std::vector<std::unique_ptr<Communicator>> owned = {};
  std::unique_ptr<Model> model = nullptr;
  std::unique_ptr<DataParallel> strategy = nullptr;

  ParallelState& state() { return strategy->state(); }
};

absl::StatusOr<Communicator*> Join(const char* name, std::vector<int> members, const Layout& layout,
                                   KeyValueStore& store, PartRank& rank) {
  ASSIGN_OR_RETURN(auto group, NewGroup({.name = name,
                                         .members = std::move(members),
                                         .world_size = layout.world(),
                                         .rank = rank.rank,
                                         .store = &store}));
  rank.owned.push_back(std::move(group));
  return rank.owned.back().get();
}

absl::Status MakeRank(const Layout& layout, KeyValueStore& store, PartRank& rank) {
  const int data = layout.replicate * layout.shard, per_stage = data * layout.tensor;
  const int stage = rank.rank / per_stage, tensor = rank.rank % layout.tensor;
  const int place = rank.rank % per_stage / layout.tensor;
  const int of_replica = place / layout.shard, of_shard = place % layout.shard;
  auto number = [&](int s, int r, int p, int t) { return s * per_stage + (r * layout.shard + p) * layout.tensor + t; };
  std::vector<int> job, data_ranks, shard_ranks, replicas, tensor_ranks;
  for (int i = 0; i < layout.world(); ++i) job.push_back(i);
  for (int i = 0; i < data; ++i) data_ranks.push_back(number(stage, i / layout.shard, i % layout.shard, tensor));
  for (int i = 0; i < layout.shard; ++i) shard_ranks.push_back(number(stage, of_replica, i, tensor));
  for (int i = 0; i < layout.replicate; ++i) replicas.push_back(number(stage, i, of_shard, tensor));
  for (int i = 0; i < layout.tensor; ++i) tensor_ranks.push_back(number(stage, of_replica, of_shard, i));

  MeshCommunicators to;
  ASSIGN_OR_RETURN(to.job, Join("job", job, layout, store, rank));
  ASSIGN_OR_RETURN(to.data, Join("data", data_ranks, layout, store, rank));
  ASSIGN_OR_RETURN(to.shard, Join("shard", shard_ranks, layout, store, rank));
  ASSIGN_OR_RETURN(to.replicate, Join("replicate", replicas, layout, store, rank));
  if (layout.tensor > 1) {
    ASSIGN_OR_RETURN(to.tensor, Join("tensor", tensor_ranks, layout, store, rank));
  }
  if (layout.stages > 1 && layout.sizes.tied && (stage == 0 || stage == layout.stages - 1)) {
    const std::vector<int> ends = {number(0, of_replica, of_shard, tensor),
                                   number(layout.stages - 1, of_replica, of_shard, tensor)};
    ASSIGN_OR_RETURN(to.tied, Join("tied", ends, layout, store, rank));
  }
  rank.job = to.job;
  ASSIGN_OR_RETURN(const ModelPart part, PartOfRank(layout.sizes, {.stage = stage,
                                                                   .stages = layout.stages,
                                                                   .chunks_per_rank = layout.chunks_per_rank,
                                                                   .tensor_rank = tensor,
                                                                   .tensor_size = layout.tensor}));
  rank.model = std::make_unique<PartOnly>(layout.sizes, part);
  DataParallelOptions options{.strategy = layout.strategy, .bucket_elements = 500};
  ASSIGN_OR_RETURN(rank.strategy, ApplyDataParallel(*rank.model, to, options, {}, ApplyRecompute({}, 0)));
  return absl::OkStatus();
}

// Runs `main` on all ranks of a layout, as threads.
void OnRanks(const Layout& layout, const std::function<absl::Status(PartRank&)>& main) {
  SCOPED_TRACE(layout.Text());
  MemoryStore store;
  std::vector<absl::Status> results(static_cast<size_t>(layout.world()));
  std::vector<std::thread> threads;
  for (int r = 0; r < layout.world(); ++r) {
    threads.emplace_back([&, r] {
      PartRank rank{.rank = r};
      auto run = [&]() -> absl::Status {
        RETURN_IF_ERROR(MakeRank(layout, store, rank));
        RETURN_IF_ERROR(main(rank));
        return rank.job->Barrier()->Wait();
      };
      results[static_cast<size_t>(r)] = run();
      if (results[static_cast<size_t>(r)].ok()) return;
      for (auto& group : rank.owned) group->Abort("a rank of the test failed");
      store.EndGeneration();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

// The value of an element of a whole tensor of the state.
float ValueAt(const StateEntry& entry, int64_t index) {
  const std::string key = absl::StrCat(entry.role, " ", entry.name);
  uint32_t hash = 0;
  for (const char c : key) hash = hash * 31 + static_cast<uint32_t>(c);
  return static_cast<float>(hash % 1000) * 1000 + static_cast<float>(index);
}

std::vector<float> ValuesOf(const StateEntry& entry, int64_t first, int64_t count) {
  std::vector<float> values;
  ForEachRun(entry.shape, entry.box, first, count, [&](int64_t at, int64_t length) {
    for (int64_t i = 0; i < length; ++i) values.push_back(ValueAt(entry, at + i));
    return true;
  });
  return values;
}

absl::Status Fill(ParallelState& state) {
  return state.Load([](const StateEntry& entry, int64_t first, int64_t count, const at::Tensor& out) {
    const std::vector<float> values = ValuesOf(entry, first, count);
    std::copy(values.begin(), values.end(), out.mutable_data_ptr<float>());
    return absl::OkStatus();
  });
}

// Writes this rank's part, and on rank 0 the manifest.
absl::Status Save(const std::string& folder, const Layout& layout, PartRank& rank) {
  const SaveKey save{.step = 3, .generation = 1, .world_size = static_cast<uint64_t>(layout.world())};
  SaveWork work{.task = {.save = save, .rank = static_cast<uint64_t>(rank.rank), .folder = folder}};
  DeviceCopies copies(nullptr);
  ASSIGN_OR_RETURN(const std::vector<StateEntry> tensors, rank.state().PrepareSaves());
  RETURN_IF_ERROR(AddOwnState(rank.state(), StateRoles::kAll, copies, work.task));
  PlanChunks(work);
  for (const SaveWork::Chunk& chunk : work.chunks) ProcessChunk(chunk);
  uint64_t bytes = 0;
  RETURN_IF_ERROR(WriteSave(
      FileSystem::Real(), work, [](uint64_t) { return absl::OkStatus(); }, bytes));
  RETURN_IF_ERROR(rank.job->Barrier()->Wait());
  if (rank.rank != 0) return absl::OkStatus();
  std::vector<CheckpointPart> parts;
  for (uint64_t r = 0; r < save.world_size; ++r) {
    ASSIGN_OR_RETURN(CheckpointPart part, ReadCheckpointPart(folder, r, save));
    parts.push_back(std::move(part));
  }
  Manifest manifest;
  manifest.job_id = "abcdefgh";
  manifest.job_name = "parts";
  manifest.step = save.step;
  manifest.generation = save.generation;
  manifest.spec = "none";
  manifest.spec_digest = HashHex(manifest.spec);
  manifest.strategy = "zero1";
  manifest.world_size = save.world_size;
  RETURN_IF_ERROR(AssembleManifest(parts, StateHeaders(tensors), manifest));
  RETURN_IF_ERROR(RemoveCheckpointParts(folder, save.world_size, FileSystem::Real()));
  return WriteManifest(folder, ManifestText(manifest), FileSystem::Real());
}

// Expects that the state of this rank is that of Fill.
absl::Status ExpectFilled(PartRank& rank) {
  int64_t wrong = 0;
  RETURN_IF_ERROR(rank.state().Visit([&](const StateEntry& entry, const at::Tensor& values) {
    const std::vector<float> expected = ValuesOf(entry, 0, CountIn(entry.box));
    EXPECT_EQ(values.sizes().vec(), entry.box.size);
    for (size_t i = 0; i < expected.size(); ++i) wrong += values.const_data_ptr<float>()[i] != expected[i];
    return absl::OkStatus();
  }));
  EXPECT_EQ(wrong, 0) << "rank " << rank.rank;
  return absl::OkStatus();
}

absl::Status LoadAndExpect(const std::string& folder, PartRank& rank) {
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(folder));
  RETURN_IF_ERROR(LoadTensors(*checkpoint, rank.state()));
  RETURN_IF_ERROR(ExpectFilled(rank));
  ASSIGN_OR_RETURN(auto difference, rank.state().CompareParameters());
  EXPECT_FALSE(difference.has_value());
  return absl::OkStatus();
}

std::vector<Layout> LayoutsOf(const ModelSizes& sizes) {
  return {{.sizes = sizes, .strategy = Strategy::kDdp},
          {.sizes = sizes, .tensor = 2, .replicate = 2, .strategy = Strategy::kDdp},
          {.sizes = sizes, .stages = 2, .tensor = 2, .shard = 2},
          {.sizes = sizes, .stages = 3, .replicate = 2, .strategy = Strategy::kDdp},
          {.sizes = sizes, .tensor = 2, .shard = 3},
          {.sizes = sizes, .shard = 3, .strategy = Strategy::kZero3},
          {.sizes = sizes, .tensor = 2, .shard = 2, .strategy = Strategy::kZero3}};
}

class PartsTest : public testing::TestWithParam<const ModelSizes*> {
 protected:
  TemporaryFolder folder_;
};

TEST_P(PartsTest, SaveOfEachLayout_IsReadByOtherLayouts) {
  const std::vector<Layout> layouts = LayoutsOf(*GetParam());
  for (size_t from = 0; from < layouts.size(); ++from) {
    const std::string folder = folder_ / absl::StrCat("saved-", from);
    ASSERT_TRUE(FileSystem::Real().MakeFolder(folder).ok());
    OnRanks(layouts[from], [&](PartRank& rank) -> absl::Status {
      RETURN_IF_ERROR(Fill(rank.state()));
      return Save(folder, layouts[from], rank);
    });
    auto saved = Checkpoint::Open(folder);
    ASSERT_TRUE(saved.ok()) << layouts[from].Text() << ": " << saved.status();
    EXPECT_EQ((*saved)->manifest().tensors.size(), DescribeModel(*GetParam()).parameters.size() * 3);
    for (size_t to : {(from + 1) % layouts.size(), (from + 3) % layouts.size()}) {
      SCOPED_TRACE(absl::StrCat("written by ", layouts[from].Text()));
      OnRanks(layouts[to], [&](PartRank& rank) { return LoadAndExpect(folder, rank); });
    }
  }
}

class SpoiledPartsTest : public testing::Test {
 protected:
  TemporaryFolder folder_;
};

// Changes the first element of one parameter on one rank.
absl::Status Spoil(absl::string_view name, ParallelState& state) {
  return state.Load([&](const StateEntry& entry, int64_t first, int64_t count, const at::Tensor& out) {
    std::vector<float> values = ValuesOf(entry, first, count);
    if (entry.role == kParameterRole && entry.name == name) values[0] += 1;
    std::copy(values.begin(), values.end(), out.mutable_data_ptr<float>());
    return absl::OkStatus();
  });
}

// What the save of a layout returns if a rank's copy of a parameter has changed, and what CompareParameters finds.
struct Found {
  absl::Status saved;
  std::vector<std::string> compared;
};

Found SaveSpoiled(const Layout& layout, int spoiled, absl::string_view name, const std::string& folder) {
  Found found;
  EXPECT_TRUE(FileSystem::Real().MakeFolder(folder).ok());
  absl::Mutex mu;
  OnRanks(layout, [&](PartRank& rank) -> absl::Status {
    RETURN_IF_ERROR(rank.rank == spoiled ? Spoil(name, rank.state()) : Fill(rank.state()));
    absl::Status saved = Save(folder, layout, rank);
    ASSIGN_OR_RETURN(auto difference, rank.state().CompareParameters());
    absl::MutexLock lock(&mu);
    if (rank.rank == 0) found.saved = saved;
    found.compared.push_back(difference.has_value()
                                 ? absl::StrCat(difference->name, " on ", absl::StrJoin(difference->ranks, ", "))
                                 : "equal");
    return absl::OkStatus();
  });
  return found;
}

TEST_F(SpoiledPartsTest, AReplicaOfATensorRankThatDiffers_FailsTheSaveAndIsNamed) {
  const Layout layout{.tensor = 2, .replicate = 2, .strategy = Strategy::kDdp};

  const Found found = SaveSpoiled(layout, 3, "ln_f.bias", folder_ / "spoiled");

  EXPECT_TRUE(absl::IsDataLoss(found.saved)) << found.saved;
  EXPECT_THAT(found.saved.message(), HasSubstr("should hold the same values and do not"));
  EXPECT_THAT(found.saved.message(), HasSubstr("parameter 'ln_f.bias'"));
  EXPECT_EQ(found.compared, std::vector<std::string>(4, "ln_f.bias on 3"));
}

TEST_F(SpoiledPartsTest, ATiedCopyThatDiffers_FailsTheSaveAndIsNamed) {
  const Layout layout{.stages = 2, .tensor = 2, .strategy = Strategy::kDdp};

  const Found found = SaveSpoiled(layout, 3, "wte.weight", folder_ / "spoiled");

  EXPECT_THAT(found.saved.message(), HasSubstr("ranks 1 and 3 should hold the same values and do not: elements [0, "));
  EXPECT_THAT(found.saved.message(), HasSubstr("parameter 'wte.weight'[18:37,0:12]"));
  EXPECT_EQ(found.compared, std::vector<std::string>(4, "wte.weight on 3"));
}

// All ranks report the difference, including those of other stages.
TEST_F(SpoiledPartsTest, AReplicaThatDiffersInOneStage_IsReportedByAllRanks) {
  const Layout layout{.stages = 2, .replicate = 2, .strategy = Strategy::kDdp};

  const Found found = SaveSpoiled(layout, 3, "h.2.ln_1.weight", folder_ / "spoiled");

  EXPECT_TRUE(absl::IsDataLoss(found.saved)) << found.saved;
  EXPECT_EQ(found.compared, std::vector<std::string>(4, "h.2.ln_1.weight on 3"));
}

// All ranks together write each element once, and the pieces that a rank witnesses have the bounds of the pieces that
// another rank writes.
TEST_P(PartsTest, EveryElement_IsWrittenByOneRank) {
  for (const Layout& layout : LayoutsOf(*GetParam())) {
    absl::Mutex mu;
    std::map<std::string, std::vector<int>> written;
    std::set<std::string> ranges, witnessed;
    OnRanks(layout, [&](PartRank& rank) -> absl::Status {
      ASSIGN_OR_RETURN(const std::vector<StateEntry> tensors, rank.state().PrepareSaves());
      absl::MutexLock lock(&mu);
      for (const StateEntry& entry : tensors) {
        written[entry.role + " " + entry.name].resize(static_cast<size_t>(CountIn(WholeBox(entry.shape))));
      }
      auto key = [](const StateEntry& entry, int64_t first, const at::Tensor& values) {
        return absl::StrCat(entry.role, " ", entry.name, BoxText(entry.box, entry.shape), " ", first, " ",
                            values.numel());
      };
      RETURN_IF_ERROR(rank.state().VisitOwn([&](const StateEntry& entry, int64_t first, const at::Tensor& values) {
        ranges.insert(key(entry, first, values));
        std::vector<int>& counts = written.at(entry.role + " " + entry.name);
        ForEachRun(entry.shape, entry.box, first, values.numel(), [&](int64_t at, int64_t length) {
          for (int64_t i = 0; i < length; ++i) ++counts[static_cast<size_t>(at + i)];
          return true;
        });
        return absl::OkStatus();
      }));
      return rank.state().VisitWitnessed([&](const StateEntry& entry, int64_t first, const at::Tensor& values) {
        witnessed.insert(key(entry, first, values));
        return absl::OkStatus();
      });
    });

    SCOPED_TRACE(layout.Text());
    for (const auto& [name, counts] : written) {
      EXPECT_EQ(std::count(counts.begin(), counts.end(), 1), static_cast<int64_t>(counts.size())) << name;
    }
    for (const std::string& range : witnessed) EXPECT_TRUE(ranges.contains(range)) << "no rank writes " << range;
    EXPECT_TRUE(layout.tensor == 1 || !witnessed.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PartsTest, testing::Values(&kGpt2Sizes, &kLlamaSizes));

}  // namespace
}  // namespace trainyard
