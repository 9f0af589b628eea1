// Checkpoints written by several ranks: their parts, the assembled manifest, and errors in either.
#include "checkpoint/part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

std::vector<TensorHeader> Headers(const SmallState& state) {
  std::vector<TensorHeader> headers;
  for (const TensorBytes& tensor : state.tensors()) {
    headers.push_back({.name = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  return headers;
}

// In these tests each rank writes one range of every tensor, which may be an empty range. As a witness it also hashes
// the range that the next rank writes.
class PartTest : public testing::Test {
 protected:
  PartTest() { EXPECT_TRUE(FileSystem::Real().MakeFolder(partial_).ok()); }

  struct Share {
    uint64_t first = 0, count = 0;
  };
  static Share ShareOf(uint64_t elements, uint64_t rank, uint64_t world) {
    const uint64_t first = elements * rank / world;
    return {first, elements * (rank + 1) / world - first};
  }

  CheckpointPart WritePart(const SmallState& state, uint64_t rank, uint64_t world) {
    CheckpointPart part{.save = Save(world), .rank = rank};
    std::vector<ShardEntry> entries;
    std::vector<absl::string_view> bytes;
    for (const TensorBytes& tensor : state.tensors()) {
      const TensorHeader header{.name = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape};
      const Share own = ShareOf(tensor.bytes.size() / 4, rank, world);
      if (own.count > 0) {
        entries.push_back({.tensor = header, .first = own.first, .count = own.count});
        bytes.push_back(tensor.bytes.substr(own.first * 4, own.count * 4));
      }
      const Share next = ShareOf(tensor.bytes.size() / 4, (rank + 1) % world, world);
      if (next.count == 0) continue;
      ManifestTensor witnessed{.name = tensor.name, .role = tensor.role, .dtype = "F32", .shape = tensor.shape};
      witnessed.pieces = CutIntoPieces({.tensor = header, .first = next.first, .count = next.count}, kPieceBytes);
      for (ManifestPiece& piece : witnessed.pieces) {
        piece.hash =
            HashHex(tensor.bytes.substr(piece.first_element * 4, (piece.last_element - piece.first_element) * 4));
      }
      part.witnessed.push_back(std::move(witnessed));
    }
    auto shard = ShardWriter::Create(partial_, absl::StrCat("shard-", rank, ".safetensors"), entries,
                                     FileSystem::Real(), {.piece_bytes = kPieceBytes});
    EXPECT_TRUE(shard.ok()) << shard.status();
    for (absl::string_view each : bytes) EXPECT_TRUE((*shard)->Append(each).ok());
    absl::StatusOr<WrittenShard> written = (*shard)->Finish();
    EXPECT_TRUE(written.ok()) << written.status();
    part.files = {written->file};
    part.tensors = written->tensors;
    part.nonfinite = written->nonfinite;
    EXPECT_TRUE(WriteCheckpointPart(partial_, part, FileSystem::Real()).ok());
    return part;
  }

  static SaveKey Save(uint64_t world) { return {.step = 4, .generation = 2, .world_size = world}; }
  absl::StatusOr<CheckpointPart> Read(uint64_t rank, uint64_t world) {
    return ReadCheckpointPart(partial_, rank, Save(world));
  }
  absl::StatusOr<std::vector<CheckpointPart>> ReadAll(uint64_t world) {
    std::vector<CheckpointPart> parts;
    for (uint64_t rank = 0; rank < world; ++rank) {
      absl::StatusOr<CheckpointPart> part = Read(rank, world);
      if (!part.ok()) return part.status();
      parts.push_back(*std::move(part));
    }
    return parts;
  }

  static constexpr uint64_t kPieceBytes = 20;  // five elements
  TemporaryFolder folder_;
  const std::string partial_ = PartialPath(folder_.path(), 4, 2);
};

TEST_F(PartTest, AllRanks_WriteACheckpointThatReturnsEveryByte) {
  for (uint64_t world : {1, 2, 3, 4, 7}) {
    SmallState state(static_cast<float>(world));
    for (uint64_t rank = 0; rank < world; ++rank) WritePart(state, rank, world);
    absl::StatusOr<std::vector<CheckpointPart>> parts = ReadAll(world);
    ASSERT_TRUE(parts.ok()) << parts.status();
    Manifest manifest = SmallManifest(4);

    absl::Status assembled = AssembleManifest(*parts, Headers(state), manifest);
    ASSERT_TRUE(assembled.ok()) << assembled;
    ASSERT_TRUE(RemoveCheckpointParts(partial_, world, FileSystem::Real()).ok());
    ASSERT_TRUE(WriteManifest(partial_, ManifestText(manifest), FileSystem::Real()).ok());

    // Apart from its name, a partial with a manifest is a checkpoint.
    auto checkpoint = Checkpoint::Open(partial_);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->manifest().files.size(), world);
    for (const TensorBytes& tensor : state.tensors()) {
      const int64_t elements = static_cast<int64_t>(tensor.bytes.size() / 4);
      for (int64_t first = 0; first < elements; ++first) {
        for (int64_t count = 1; first + count <= elements; count += 3) {
          std::string out(static_cast<size_t>(count) * 4, '\0');
          absl::Status read = (*checkpoint)
                                  ->ReadRange(tensor.role, tensor.name, "F32", tensor.shape, first, count,
                                              absl::MakeSpan(out.data(), out.size()));
          ASSERT_TRUE(read.ok()) << read;
          ASSERT_EQ(out, tensor.bytes.substr(static_cast<size_t>(first) * 4, out.size())) << first << " + " << count;
        }
      }
    }
    checkpoint->reset();
    std::filesystem::remove_all(partial_);
    ASSERT_TRUE(FileSystem::Real().MakeFolder(partial_).ok());
  }
}

TEST_F(PartTest, Text_RoundTripsAndAnyFlippedByteIsDetected) {
  const CheckpointPart part = WritePart(SmallState(1), 1, 3);
  const std::string text = PartText(part), path = JoinPath(partial_, PartName(1));

  absl::StatusOr<CheckpointPart> read = ParsePart(text);

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(PartText(*read), text);
  EXPECT_EQ(*ReadFile(path), text);
  for (size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] ^= 4;
    EXPECT_TRUE(absl::IsDataLoss(ParsePart(damaged).status())) << at;
  }
  FlipByte(path, 70);
  EXPECT_TRUE(absl::IsUnavailable(Read(1, 3).status())) << "a file system may show a file before it is whole";
}

TEST_F(PartTest, MissingPart_IsDistinguishedFromAPartOfAnotherSave) {
  WritePart(SmallState(1), 0, 2);

  absl::Status missing = Read(1, 2).status();
  absl::Status other = ReadCheckpointPart(partial_, 0, {.step = 4, .generation = 3, .world_size = 2}).status();
  std::filesystem::resize_file(JoinPath(partial_, "shard-0.safetensors"), 100);
  absl::Status cut = Read(0, 2).status();
  std::filesystem::remove(JoinPath(partial_, "shard-0.safetensors"));
  absl::Status gone = Read(0, 2).status();

  EXPECT_TRUE(absl::IsUnavailable(missing)) << missing;
  EXPECT_THAT(missing.message(), HasSubstr("part-00001.json"));
  EXPECT_TRUE(absl::IsFailedPrecondition(other)) << other;
  EXPECT_THAT(other.message(), HasSubstr("is of step 4, generation 2, rank 0 of 2, not of step 4, generation 3"));
  EXPECT_TRUE(absl::IsUnavailable(cut)) << cut;
  EXPECT_THAT(cut.message(), HasSubstr("shard-0.safetensors has 100 bytes; its part lists"));
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
}

TEST_F(PartTest, ElementsWrittenByNoRankOrTwo_AreRefused) {
  SmallState state(1);
  std::vector<CheckpointPart> parts;
  for (uint64_t rank = 0; rank < 3; ++rank) parts.push_back(WritePart(state, rank, 3));
  Manifest manifest = SmallManifest(4);
  ASSERT_TRUE(AssembleManifest(parts, Headers(state), manifest).ok());
  std::vector<CheckpointPart> one_less = {parts[0], parts[2]}, twice = parts;
  twice[1].tensors.push_back(parts[0].tensors[0]);
  std::vector<TensorHeader> one_more = Headers(state), fewer = Headers(state);
  one_more.push_back({.name = "wpe.weight", .role = "parameter", .dtype = "F32", .shape = {2}});
  fewer.pop_back();

  EXPECT_THAT(AssembleManifest(one_less, Headers(state), manifest).message(),
              HasSubstr("parameter 'wte.weight' has 24 elements, but its pieces hold 16"));
  EXPECT_THAT(AssembleManifest(twice, Headers(state), manifest).message(), HasSubstr("has pieces that overlap"));
  EXPECT_THAT(AssembleManifest(parts, one_more, manifest).message(),
              HasSubstr("'wpe.weight' has 2 elements, but its pieces hold 0"));
  EXPECT_THAT(AssembleManifest(parts, fewer, manifest).message(), HasSubstr("not a tensor of this state"));
}

TEST_F(PartTest, RanksWithDifferentCopies_AreNamedWithTheTensor) {
  SmallState right(1), wrong(1.5);
  std::vector<CheckpointPart> parts = {WritePart(right, 0, 3), WritePart(wrong, 1, 3), WritePart(right, 2, 3)};
  Manifest manifest = SmallManifest(4);

  absl::Status status = AssembleManifest(parts, Headers(right), manifest);

  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(status.message(), HasSubstr("ranks 1 and 0 should hold the same values and do not: elements [8, 13) of "
                                          "parameter 'wte.weight'"));
}

TEST_F(PartTest, Nonfinite_OfAllRanks_IsListedOnce) {
  SmallState state(1);
  std::vector<CheckpointPart> parts = {WritePart(state, 0, 2), WritePart(state, 1, 2)};
  parts[0].nonfinite = parts[1].nonfinite = {"parameter 'wte.weight'"};
  Manifest manifest = SmallManifest(4);

  ASSERT_TRUE(AssembleManifest(parts, Headers(state), manifest).ok());

  EXPECT_THAT(manifest.nonfinite, testing::ElementsAre("parameter 'wte.weight'"));
}

TEST_F(PartTest, WriterWithAnErrorBeforeAWrite_StopsAtTheNextChunk) {
  const std::string bytes(1 << 20, 'x');
  uint64_t requested = 0;
  ShardOptions options{.before_write = [&](uint64_t chunk) {
    requested += chunk;
    return requested > 600'000 ? absl::CancelledError("given up") : absl::OkStatus();
  }};
  const TensorHeader header{.name = "w", .role = "parameter", .dtype = "F32", .shape = {1 << 18}};
  auto shard = ShardWriter::Create(partial_, "shard", {{.tensor = header, .count = 1 << 18}}, FileSystem::Real(),
                                   std::move(options));
  ASSERT_TRUE(shard.ok());

  EXPECT_TRUE(absl::IsCancelled((*shard)->Append(bytes)));

  EXPECT_LT(std::filesystem::file_size(JoinPath(partial_, "shard")), 700'000u);
}

}  // namespace
}  // namespace trainyard
