// A snapshot that opens is whole, wherever its writer was killed and whichever byte was changed.
#include "checkpoint/snapshot.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/shard_writer.h"
#include "checkpoint/snapshot_format.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kCapacity = 4096;
constexpr char kJob[] = "k3vq7a2p";

class SnapshotTest : public testing::Test {
 protected:
  SnapshotPlace Place(uint64_t generation, uint64_t rank) {
    return {.folder = folder_.path(), .job_id = kJob, .generation = generation, .rank = rank};
  }
  std::string Path(char buffer = 'a') { return SnapshotPath(Place(2, 1), buffer); }
  std::unique_ptr<SnapshotBuffer> NewBuffer(char buffer = 'a') {
    return *SnapshotBuffer::Make(Path(buffer), kCapacity);
  }

  // Copies the state of this step into `buffer`. The part says that rank 1 of two ranks holds all of it.
  CheckpointPart Copy(uint64_t step, SnapshotBuffer& buffer) {
    const SmallState state(static_cast<float>(step));
    CheckpointPart part{.save = {.step = step, .generation = 2, .world_size = 2}, .rank = 1};
    uint64_t at = 0;
    for (const TensorBytes& tensor : state.tensors()) {
      std::memcpy(buffer.contents() + at, tensor.bytes.data(), tensor.bytes.size());
      ShardEntry entry{
          .tensor = {.name = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape},
          .count = tensor.bytes.size() / 4};
      ManifestTensor& indexed = part.tensors.emplace_back();
      indexed = {.name = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape};
      indexed.pieces = CutIntoPieces(entry);
      indexed.pieces[0].file = "shard-00001.safetensors";
      indexed.pieces[0].hash = HashEntry(entry, tensor.bytes).pieces.at(0);
      indexed.pieces[0].first_byte = at;
      indexed.pieces[0].last_byte = at + tensor.bytes.size();
      at += AlignedInSnapshot(tensor.bytes.size());
    }
    return part;
  }
  void Save(uint64_t step, SnapshotBuffer& buffer) {
    buffer.Begin();
    const CheckpointPart part = Copy(step, buffer);
    ASSERT_EQ(buffer.Seal(kJob, part, "extra bytes"), absl::OkStatus());
  }

  TemporaryFolder folder_;
};

TEST_F(SnapshotTest, SealedSnapshot_CanBeOpenedByAnotherProcess) {
  Save(7, *NewBuffer());  // the buffer is unmapped when this returns

  auto snapshot = Snapshot::Open(Path());

  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ((*snapshot)->job_id(), kJob);
  EXPECT_EQ((*snapshot)->part().save, (SaveKey{.step = 7, .generation = 2, .world_size = 2}));
  EXPECT_EQ((*snapshot)->part().rank, 1u);
  EXPECT_EQ((*snapshot)->extra(), "extra bytes");
  EXPECT_EQ((*snapshot)->Verify(), absl::OkStatus());
  const SmallState state(7);
  for (const ManifestTensor& tensor : (*snapshot)->part().tensors) {
    std::string bytes(tensor.pieces.at(0).last_byte - tensor.pieces[0].first_byte, '\0');
    ASSERT_EQ((*snapshot)->Read(tensor.pieces[0], absl::MakeSpan(bytes.data(), bytes.size())), absl::OkStatus());
    EXPECT_EQ(bytes, state.Bytes(tensor.role, tensor.name));
  }
}

// The writer may be killed at any moment, and a reader then finds the present content of the file.
TEST_F(SnapshotTest, UnsealedSnapshot_IsRefused_AndTheOtherBufferRemainsComplete) {
  auto a = NewBuffer('a'), b = NewBuffer('b');
  EXPECT_TRUE(absl::IsUnavailable(Snapshot::Open(Path('a')).status())) << "before anything is written";
  Save(7, *a);

  for (uint64_t step : {8, 9}) {
    b->Begin();
    EXPECT_TRUE(absl::IsUnavailable(Snapshot::Open(Path('b')).status())) << "before anything is copied";
    Copy(step, *b);
    EXPECT_TRUE(absl::IsUnavailable(Snapshot::Open(Path('b')).status())) << "after all is copied, before Seal";
    ASSERT_TRUE(Snapshot::Open(Path('a')).ok());
    EXPECT_EQ((*Snapshot::Open(Path('a')))->Verify(), absl::OkStatus());
    Save(step, *b);
    EXPECT_EQ((*Snapshot::Open(Path('b')))->part().save.step, step);
  }
}

TEST_F(SnapshotTest, SealWithATooLongIndexOrJobId_LeavesTheSnapshotUnsealed) {
  auto buffer = NewBuffer();
  buffer->Begin();
  CheckpointPart part = Copy(7, *buffer);

  const std::string long_extra(snapshot_format::kIndexBytesMax, 'x');
  EXPECT_TRUE(absl::IsResourceExhausted(buffer->Seal("job", part, long_extra)));
  EXPECT_TRUE(absl::IsInvalidArgument(buffer->Seal(std::string(80, 'j'), part, "")));

  EXPECT_TRUE(absl::IsUnavailable(Snapshot::Open(Path()).status()));
}

// The padding after the header and between tensors, and the unused rest of the contents, are not hashed.
TEST_F(SnapshotTest, AnyFlippedBit_IsDetected) {
  Save(7, *NewBuffer());
  const uint64_t size = std::filesystem::file_size(Path());
  const CheckpointPart part = (*Snapshot::Open(Path()))->part();
  std::vector<bool> is_hashed(size, true);
  const uint64_t header = sizeof(snapshot_format::Header), contents = snapshot_format::kHeaderBytes;
  std::fill(is_hashed.begin() + static_cast<ptrdiff_t>(header),
            is_hashed.begin() + static_cast<ptrdiff_t>(contents + kCapacity), false);
  for (const ManifestTensor& tensor : part.tensors) {
    for (uint64_t at = tensor.pieces[0].first_byte; at < tensor.pieces[0].last_byte; ++at)
      is_hashed[contents + at] = true;
  }

  for (uint64_t at = 0; at < size; ++at) {
    if (!is_hashed[at]) continue;
    FlipBit(Path(), at, static_cast<int>(at % 8));
    auto opened = Snapshot::Open(Path());
    EXPECT_FALSE(opened.ok() && (*opened)->Verify().ok()) << "byte " << at;
    FlipBit(Path(), at, static_cast<int>(at % 8));
  }
  EXPECT_EQ((*Snapshot::Open(Path()))->Verify(), absl::OkStatus());
}

// 2^61 elements of 8 bytes are 0 bytes modulo 2^64.
TEST_F(SnapshotTest, PieceWithMoreElementsThanItsBytes_IsDamage) {
  auto buffer = NewBuffer();
  CheckpointPart part = Copy(7, *buffer);
  part.tensors[0].dtype = "F64";
  ManifestPiece& piece = part.tensors[0].pieces[0];
  piece.last_element = piece.first_element + (uint64_t{1} << 61);
  piece.last_byte = piece.first_byte;
  ASSERT_EQ(buffer->Seal(kJob, part, ""), absl::OkStatus());

  absl::Status opened = Snapshot::Open(Path()).status();

  EXPECT_TRUE(absl::IsDataLoss(opened)) << opened;
  EXPECT_THAT(std::string(opened.message()), HasSubstr("contradicts itself about parameter 'wte.weight'"));
}

TEST_F(SnapshotTest, TruncatedFile_IsRefused) {
  Save(7, *NewBuffer());
  const uint64_t size = std::filesystem::file_size(Path());

  for (uint64_t left : {size - 1, size / 2, snapshot_format::kHeaderBytes, uint64_t{100}, uint64_t{0}}) {
    ASSERT_EQ(truncate(Path().c_str(), static_cast<off_t>(left)), 0);
    EXPECT_FALSE(Snapshot::Open(Path()).ok()) << left << " bytes";
  }
}

// A process of an earlier generation still writes while another process reads.
TEST_F(SnapshotTest, BufferWrittenDuringARead_IsReportedAsDamage) {
  auto buffer = NewBuffer();
  Save(7, *buffer);
  auto snapshot = *Snapshot::Open(Path());

  buffer->Begin();
  Copy(8, *buffer);

  const ManifestPiece& piece = snapshot->part().tensors[0].pieces[0];
  std::string bytes(piece.last_byte - piece.first_byte, '\0');
  EXPECT_TRUE(absl::IsDataLoss(snapshot->Read(piece, absl::MakeSpan(bytes.data(), bytes.size()))));
  absl::Status verified = snapshot->Verify();
  EXPECT_TRUE(absl::IsDataLoss(verified));
  EXPECT_THAT(verified.message(), HasSubstr("wte.weight"));
}

TEST_F(SnapshotTest, ExistingFileAndLink_AreRefused) {
  auto buffer = NewBuffer();
  EXPECT_TRUE(absl::IsAlreadyExists(SnapshotBuffer::Make(Path(), kCapacity).status()));

  std::filesystem::create_symlink(folder_ / "elsewhere", Path('b'));

  EXPECT_FALSE(SnapshotBuffer::Make(Path('b'), kCapacity).ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "elsewhere"));
}

TEST_F(SnapshotTest, BufferThatDoesNotFit_LeavesNoFile) {
  // The size exceeds the maximum length of a file.
  EXPECT_FALSE(SnapshotBuffer::Make(Path(), uint64_t{1} << 62).ok());

  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(SnapshotTest, OlderGenerations_AreRemovedForAllRanks) {
  // The buffers of processes that still run. After the removal they write to files without a name.
  std::vector<std::unique_ptr<SnapshotBuffer>> live;
  for (uint64_t generation : {1, 2, 3}) {
    for (uint64_t rank : {0, 3}) {
      live.push_back(*SnapshotBuffer::Make(SnapshotPath(Place(generation, rank), 'a'), kCapacity));
    }
  }
  SnapshotPlace other = Place(1, 0);
  other.job_id = "other";
  live.push_back(*SnapshotBuffer::Make(SnapshotPath(other, 'b'), kCapacity));

  RemoveOlderSnapshots(folder_.path(), kJob, 3);

  EXPECT_THAT(ListSnapshots(folder_.path(), kJob),
              ElementsAre(SnapshotPath(Place(3, 0), 'a'), SnapshotPath(Place(3, 3), 'a')));
  EXPECT_THAT(ListSnapshots(folder_.path(), "other"), ElementsAre(SnapshotPath(other, 'b')));
  EXPECT_THAT(ListSnapshots(folder_ / "missing", kJob), IsEmpty());
  Save(9, *live[0]);
}

}  // namespace
}  // namespace trainyard
