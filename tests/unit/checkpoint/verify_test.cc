// Verification reports every problem by file and tensor; some are found without reading the files.
#include "checkpoint/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>

#include "checkpoint/read_error.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kShard[] = "shard-00000.safetensors";

class VerifyTest : public testing::Test {
 protected:
  VerifyTest() {
    SmallState state(1);
    path_ = WriteCheckpoint(folder_.path(), SmallManifest(1), state.tensors(), FileSystem::Real())->path;
    shard_ = JoinPath(path_, kShard);
  }
  // Returns where the bytes of a tensor begin in the shard.
  uint64_t FirstByte(const char* name) {
    auto file = SafetensorsFile::Open(shard_);
    return static_cast<uint64_t>((*file)->Bytes(*(*file)->Find(name)).data() - (*file)->whole().data());
  }
  std::vector<CheckpointProblem> Problems() { return VerifyCheckpoint(path_, {})->problems; }

  const TemporaryFolder folder_;
  std::string path_;
  std::string shard_;
};

TEST_F(VerifyTest, GoodCheckpoint_HasNoProblemAndEveryByteIsCounted) {
  std::atomic<uint64_t> bytes = 0;

  auto verified = VerifyCheckpoint(path_, {.on_bytes = [&](uint64_t n) { bytes += n; }});

  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_THAT(verified->problems, IsEmpty());
  EXPECT_EQ(verified->manifest->step, 1u);
  EXPECT_EQ(bytes, std::filesystem::file_size(shard_));
  EXPECT_EQ(verified->size_bytes, bytes + std::filesystem::file_size(JoinPath(path_, kManifestName)));
}

TEST_F(VerifyTest, EveryDamagedTensor_IsNamed) {
  FlipByte(shard_, FirstByte("wte.weight") + 3);
  FlipByte(shard_, FirstByte("optimizer.exp_avg.ln_f.bias"));

  std::vector<CheckpointProblem> problems = Problems();

  std::vector<std::string> tensors;
  for (const CheckpointProblem& problem : problems) {
    EXPECT_EQ(problem.file, kShard);
    EXPECT_THAT(problem.expected, HasSubstr("hash "));
    EXPECT_NE(problem.expected, problem.found);
    tensors.push_back(problem.tensor);
  }
  // The last problem is the hash of the whole file.
  EXPECT_THAT(tensors, ElementsAre("parameter 'wte.weight'", "exp_avg 'ln_f.bias'", ""));
  EXPECT_THAT(problems[0].Text(path_), HasSubstr(shard_ + ", parameter 'wte.weight': expected hash "));
}

TEST_F(VerifyTest, DamagedHeader_IsAProblemOfTheFileOnly) {
  FlipByte(shard_, 20);

  std::vector<CheckpointProblem> problems = Problems();

  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].file, kShard);
  EXPECT_EQ(problems[0].tensor, "");
}

TEST_F(VerifyTest, TruncatedFile_NamesTheMissingTensors) {
  const uint64_t cut = FirstByte("optimizer.exp_avg_sq.ln_f.bias") + 4;
  const uint64_t whole = std::filesystem::file_size(shard_);
  std::filesystem::resize_file(shard_, cut);

  std::vector<CheckpointProblem> problems = Problems();

  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(problems[0].expected, absl::StrCat(whole, " bytes"));
  EXPECT_EQ(problems[0].found, absl::StrCat(cut, " bytes"));
  EXPECT_EQ(problems[1].tensor, "exp_avg_sq 'ln_f.bias'");
  EXPECT_EQ(problems[1].found, absl::StrCat("the file ends at ", cut));
}

TEST_F(VerifyTest, SeveralProblems_AreAllReported) {
  std::filesystem::remove(shard_);
  ASSERT_TRUE(WriteFileAtomically(JoinPath(path_, "notes.txt"), "mine").ok());

  std::vector<CheckpointProblem> problems = Problems();

  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(problems[0].file, "notes.txt");
  EXPECT_EQ(problems[1].found, "nothing: it is missing");
}

TEST_F(VerifyTest, DamagedOrMissingManifest_IsTheProblem) {
  FlipByte(JoinPath(path_, kManifestName), 200);
  auto damaged = VerifyCheckpoint(path_, {});
  std::filesystem::remove(JoinPath(path_, kManifestName));
  auto missing = VerifyCheckpoint(path_, {});

  ASSERT_TRUE(damaged.ok() && missing.ok());
  EXPECT_FALSE(damaged->manifest.has_value());
  EXPECT_THAT(damaged->problems[0].found, HasSubstr("its bytes have the hash"));
  EXPECT_THAT(missing->problems[0].found, HasSubstr("missing"));
  EXPECT_TRUE(absl::IsNotFound(VerifyCheckpoint(folder_ / "step-00000009", {}).status()));
}

// Opening a FIFO as a file would block until a process writes to it.
TEST_F(VerifyTest, EntryThatIsNotAFile_IsAProblemAndDoesNotBlock) {
  std::filesystem::remove(shard_);
  ASSERT_EQ(mkfifo(shard_.c_str(), 0600), 0);
  ASSERT_EQ(Problems().size(), 1u);
  EXPECT_EQ(Problems()[0].found, "something that is not a file");
  EXPECT_FALSE(Checkpoint::OpenUnverified(path_).ok());

  const std::string manifest = JoinPath(path_, kManifestName);
  std::filesystem::remove(manifest);
  ASSERT_EQ(mkfifo(manifest.c_str(), 0600), 0);
  ASSERT_EQ(Problems().size(), 1u);
  EXPECT_THAT(Problems()[0].found, HasSubstr("is a FIFO, but a file was expected"));
  EXPECT_FALSE(Checkpoint::Open(path_).ok());
}

// An I/O error, a stale file handle of NFS or missing permission says nothing about the bytes.
TEST_F(VerifyTest, FileThatCannotBeRead_IsAProblem_ButNotDamage) {
  MakeUnreadable(shard_);

  const auto verified = VerifyCheckpoint(path_, {});

  ASSERT_TRUE(verified.ok()) << verified.status();
  ASSERT_EQ(verified->problems.size(), 1u);
  EXPECT_TRUE(IsFailedRead(FailedReadOf(verified))) << verified->problems[0].Text(path_);
  EXPECT_THAT(verified->problems[0].Text(path_), HasSubstr(shard_ + ": Too many levels of symbolic links"));
  EXPECT_TRUE(IsFailedRead(Checkpoint::Open(path_).status())) << Checkpoint::Open(path_).status();
  EXPECT_TRUE(IsFailedRead(Checkpoint::OpenUnverified(path_).status()));

  ASSERT_TRUE(WriteFileAtomically(JoinPath(path_, "notes.txt"), "mine").ok());
  EXPECT_TRUE(FailedReadOf(VerifyCheckpoint(path_, {})).ok()) << "there is damage, too";
  EXPECT_TRUE(absl::IsDataLoss(Checkpoint::Open(path_).status()));
}

TEST_F(VerifyTest, ManifestThatCannotBeRead_IsAnError) {
  MakeUnreadable(JoinPath(path_, kManifestName));

  EXPECT_TRUE(IsFailedRead(VerifyCheckpoint(path_, {}).status()));
  EXPECT_TRUE(IsFailedRead(Checkpoint::Open(path_).status()));
}

TEST_F(VerifyTest, FilesRemovedOrCutAfterTheirLengthsWereChecked_AreDamaged) {
  const Manifest manifest = *VerifyCheckpoint(path_, {})->manifest;
  std::filesystem::resize_file(shard_, 20);
  EXPECT_EQ(VerifyFile(path_, manifest, manifest.files[0]).back().found, "20 bytes");

  std::filesystem::remove(shard_);
  const std::vector<CheckpointProblem> problems = VerifyFile(path_, manifest, manifest.files[0]);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_TRUE(FailedReadOf(problems).ok());
}

TEST_F(VerifyTest, QuickVerifyCheckpoint_ChecksLengthsAndNamesButNotBytes) {
  FlipByte(shard_, 20);
  EXPECT_THAT(QuickVerifyCheckpoint(path_)->problems, IsEmpty());

  std::filesystem::resize_file(shard_, 100);
  EXPECT_EQ(QuickVerifyCheckpoint(path_)->problems.size(), 1u);
}

// Files are verified concurrently; the problems are in the order of the manifest whichever file was finished first.
TEST_F(VerifyTest, ManyFilesWithManyThreads_ReturnTheSameProblemsInOrder) {
  std::string path = folder_ / "step-00000002";
  ASSERT_TRUE(MakeFolders(path).ok());
  Manifest manifest = SmallManifest(2);
  for (int i = 0; i < 40; ++i) {
    const std::string name = absl::StrCat("file-", 100 + i), bytes(static_cast<size_t>(1000 * (40 - i)), 'a');
    ASSERT_TRUE(WriteFileAtomically(JoinPath(path, name), bytes).ok());
    manifest.files.push_back({.name = name, .bytes = bytes.size(), .hash = HashHex(bytes)});
  }
  ASSERT_TRUE(WriteFileAtomically(JoinPath(path, kManifestName), ManifestText(manifest)).ok());
  EXPECT_THAT(VerifyFiles(path, manifest, {.threads = 8}), IsEmpty());
  for (const char* name : {"file-103", "file-139", "file-120"}) FlipByte(JoinPath(path, name), 500);

  for (int threads : {1, 2, 8}) {
    std::vector<std::string> files;
    for (const CheckpointProblem& problem : VerifyFiles(path, manifest, {.threads = threads}))
      files.push_back(problem.file);

    EXPECT_THAT(files, ElementsAre("file-103", "file-120", "file-139")) << threads << " threads";
  }
}

}  // namespace
}  // namespace trainyard
