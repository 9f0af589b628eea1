// Crashes at every file-system call of a save, of settling (settle.h) and of pruning, on a disk that loses unsynced
// writes. Afterwards the newest complete checkpoint must load, no other state may be loaded, and settling must leave
// only checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "checkpoint/catalog.h"
#include "checkpoint/part.h"
#include "checkpoint/reader.h"
#include "checkpoint/settle.h"
#include "common/status_macros.h"
#include "tests/unit/checkpoint/forgetful_disk.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

// What a disk holds after a crash.
struct Aftermath {
  Survives survives;
  uint32_t seed;
};

std::vector<Aftermath> Aftermaths() {
  std::vector<Aftermath> all = {{Survives::kSynced, 0}, {Survives::kEverything, 0}, {Survives::kProcess, 0}};
  for (uint32_t seed = 1; seed <= 4; ++seed) all.push_back({Survives::kSome, seed});
  return all;
}

std::string Text(const Aftermath& aftermath, int calls) {
  return absl::StrCat("after ", calls, " calls, survives ", static_cast<int>(aftermath.survives), ", seed ",
                      aftermath.seed);
}

// The values of the saved state depend on `salt`, so a test recognises the state that it loads.
absl::StatusOr<SavedCheckpoint> Save(const std::string& folder, uint64_t step, float salt, FileSystem& disk) {
  SmallState state(salt);
  return WriteCheckpoint(folder, SmallManifest(step), state.tensors(), disk);
}

// Writes the part of each of two ranks, one after the other, and then commits as rank 0.
absl::Status SaveByTwoRanks(const std::string& folder, uint64_t step, float salt, FileSystem& disk) {
  constexpr uint64_t kRanks = 2;
  SmallState state(salt);
  Manifest manifest = SmallManifest(step);
  const SaveKey key{.step = step, .generation = manifest.generation, .world_size = kRanks};
  const std::string partial = PartialPath(folder, step, manifest.generation);
  std::vector<TensorHeader> headers;
  std::vector<CheckpointPart> parts;
  for (const TensorBytes& tensor : state.tensors()) {
    headers.push_back({.name = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  for (uint64_t rank = 0; rank < kRanks; ++rank) {
    absl::Status made = disk.MakeFolder(partial);
    if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
    std::vector<ShardEntry> entries;
    for (const TensorHeader& header : headers) {
      const uint64_t half = *CountElements(header.shape) / kRanks;
      entries.push_back({.tensor = header, .first = rank * half, .count = half});
    }
    ASSIGN_OR_RETURN(auto shard, ShardWriter::Create(partial, ShardName(rank), entries, disk));
    for (size_t i = 0; i < entries.size(); ++i) {
      RETURN_IF_ERROR(shard->Append(state.tensors()[i].bytes.substr(entries[i].first * 4, entries[i].count * 4)));
    }
    ASSIGN_OR_RETURN(WrittenShard written, shard->Finish());
    const CheckpointPart part{.save = key, .rank = rank, .files = {written.file}, .tensors = written.tensors};
    RETURN_IF_ERROR(WriteCheckpointPart(partial, part, disk));
  }
  for (uint64_t rank = 0; rank < kRanks; ++rank) {
    ASSIGN_OR_RETURN(CheckpointPart part, ReadCheckpointPart(partial, rank, key));
    parts.push_back(std::move(part));
  }
  RETURN_IF_ERROR(AssembleManifest(parts, headers, manifest));
  RETURN_IF_ERROR(RemoveCheckpointParts(partial, kRanks, disk));
  RETURN_IF_ERROR(WriteManifest(partial, ManifestText(manifest), disk));
  RETURN_IF_ERROR(disk.RenameOrExchange(partial, JoinPath(folder, StepFolderName(step))));
  RETURN_IF_ERROR(disk.SyncFolder(folder));
  return disk.RemoveAll(partial);
}

absl::Status Settle(const std::string& folder, FileSystem& disk) {
  const Manifest manifest = SmallManifest(0);
  return SettlePartials(folder,
                        {.job_id = manifest.job_id,
                         .settled = JobGeneration{.job_id = manifest.job_id, .generation = manifest.generation}},
                        disk)
      .status();
}

// Returns the salt of the state in the newest checkpoint, -1 if there is none. Fails if the checkpoint is not whole, or
// if anything else is left in the folder.
float NewestState(const std::string& folder, const std::vector<float>& salts) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(StepOfFolderName(name).has_value()) << name << " is left";
  }
  auto found = FindCheckpoint(folder);
  EXPECT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(found->damaged, ::testing::IsEmpty());
  if (found->checkpoint == nullptr) return -1;
  for (float salt : salts) {
    SmallState state(salt);
    bool same = true;
    for (const TensorBytes& tensor : state.tensors()) {
      std::string bytes(tensor.bytes.size(), '\0');
      EXPECT_TRUE(found->checkpoint
                      ->ReadTensor(tensor.role, tensor.name, tensor.dtype, tensor.shape,
                                   absl::MakeSpan(bytes.data(), bytes.size()))
                      .ok());
      same = same && bytes == tensor.bytes;
    }
    if (same) return salt;
  }
  ADD_FAILURE() << "the checkpoint holds a state that was never saved";
  return -1;
}

// Counts the file-system calls that `act` makes, on a copy of `folder`.
template <typename Act>
int CountCalls(const std::string& folder, const Act& act) {
  TemporaryFolder copy;
  std::filesystem::copy(folder, copy.path(), std::filesystem::copy_options::recursive);
  ForgetfulDisk disk(copy.path());
  act(copy.path(), disk);
  return disk.num_calls();
}

struct SaveCase {
  const char* name;
  std::vector<uint64_t> earlier_steps;  // saved before, with the step as salt
  uint64_t step;                        // saved with salt 7, while the machine crashes
  bool by_two_ranks = false;
  bool Save(const std::string& folder, FileSystem& disk) const {
    return by_two_ranks ? SaveByTwoRanks(folder, step, 7, disk).ok() : trainyard::Save(folder, step, 7, disk).ok();
  }
};

class CrashTest : public ::testing::TestWithParam<SaveCase> {
 protected:
  CrashTest() {
    for (uint64_t step : GetParam().earlier_steps) {
      EXPECT_TRUE(Save(base_.path(), step, static_cast<float>(step), FileSystem::Real()).ok());
    }
    if (!GetParam().earlier_steps.empty()) older_ = static_cast<float>(GetParam().earlier_steps.back());
  }
  // Copies the folder as it was before the save.
  void CopyTo(const TemporaryFolder& folder) {
    std::filesystem::copy(base_.path(), folder.path(), std::filesystem::copy_options::recursive);
  }

  TemporaryFolder base_;
  float older_ = -1;  // the salt of the newest checkpoint before the save; -1 if there is none
};

TEST_P(CrashTest, CrashAtAnyCallOfASave_LeavesTheNewestCheckpointLoadable) {
  auto save = [](const std::string& folder, FileSystem& disk) { return GetParam().Save(folder, disk); };
  const int calls = CountCalls(base_.path(), save);
  ASSERT_GT(calls, 10);
  for (int crash = 0; crash <= calls; ++crash) {
    for (const Aftermath& aftermath : Aftermaths()) {
      SCOPED_TRACE(Text(aftermath, crash));
      TemporaryFolder folder;
      CopyTo(folder);
      ForgetfulDisk disk(folder.path());
      disk.CrashAfter(crash);

      const bool saved = save(folder.path(), disk);
      disk.Restart(aftermath.survives, aftermath.seed);
      ASSERT_TRUE(Settle(folder.path(), disk).ok());

      const float found = NewestState(folder.path(), {7, older_});
      EXPECT_TRUE(found == 7 || (!saved && found == older_)) << "saved " << saved << ", found " << found;
      // A checkpoint that was found once must survive a further power cut.
      disk.Restart(Survives::kSynced);
      ASSERT_TRUE(Settle(folder.path(), disk).ok());
      EXPECT_EQ(NewestState(folder.path(), {7, older_}), found);
      if (HasFailure()) return;
    }
  }
}

TEST_P(CrashTest, CrashAtAnyCallOfSettling_LosesNothing) {
  // First only the process is killed: unsynced writes are still there, and a later power cut may lose them.
  auto save = [](const std::string& folder, FileSystem& disk) { return GetParam().Save(folder, disk); };
  const int save_calls = CountCalls(base_.path(), save);
  for (int killed = 0; killed <= save_calls; ++killed) {
    for (int crash = 0;; ++crash) {
      bool settled = false;
      for (const Aftermath& aftermath : {Aftermath{Survives::kSynced, 0}, Aftermath{Survives::kSome, 1}}) {
        SCOPED_TRACE(absl::StrCat("killed after ", killed, "; settling: ", Text(aftermath, crash)));
        TemporaryFolder folder;
        CopyTo(folder);
        ForgetfulDisk disk(folder.path());
        disk.CrashAfter(killed);
        const bool saved = save(folder.path(), disk);
        disk.Restart(Survives::kProcess);

        disk.CrashAfter(crash);
        settled = Settle(folder.path(), disk).ok() && !disk.crashed();
        const float first = settled ? NewestState(folder.path(), {7, older_}) : -1;
        disk.Restart(aftermath.survives, aftermath.seed);
        ASSERT_TRUE(Settle(folder.path(), disk).ok());

        const float found = NewestState(folder.path(), {7, older_});
        EXPECT_TRUE(found == 7 || (!saved && found == older_)) << found;
        if (settled) {
          EXPECT_EQ(found, first);
        }
        if (HasFailure()) return;
      }
      if (settled) break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Saves, CrashTest,
                         ::testing::Values(SaveCase{"First", {}, 100}, SaveCase{"Second", {100}, 200},
                                           SaveCase{"Replacing", {100, 200}, 200},
                                           SaveCase{"ByTwoRanks", {100}, 200, true},
                                           SaveCase{"ReplacingByTwoRanks", {200}, 200, true}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(CrashTest, CrashAtAnyCallOfPruning_LeavesNoIncompleteCheckpoint) {
  TemporaryFolder base;
  for (uint64_t step : {100, 200, 300}) {
    ASSERT_TRUE(Save(base.path(), step, static_cast<float>(step), FileSystem::Real()).ok());
  }
  auto prune = [](const std::string& folder, FileSystem& disk) {
    return PruneCheckpoints(folder, 300, {.keep = 1}, {}, disk).ok();
  };
  const int calls = CountCalls(base.path(), prune);
  ASSERT_GE(calls, 6);
  for (int crash = 0; crash <= calls; ++crash) {
    for (const Aftermath& aftermath : Aftermaths()) {
      SCOPED_TRACE(Text(aftermath, crash));
      TemporaryFolder folder;
      std::filesystem::copy(base.path(), folder.path(), std::filesystem::copy_options::recursive);
      ForgetfulDisk disk(folder.path());
      disk.CrashAfter(crash);

      prune(folder.path(), disk);
      disk.Restart(aftermath.survives, aftermath.seed);
      ASSERT_TRUE(Settle(folder.path(), disk).ok());

      EXPECT_EQ(NewestState(folder.path(), {300}), 300);
      const auto checkpoints = ListCheckpoints(folder.path());
      for (const StepFolder& left : *checkpoints) {
        EXPECT_TRUE(Checkpoint::Open(left.path).ok()) << left.path;
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace trainyard
