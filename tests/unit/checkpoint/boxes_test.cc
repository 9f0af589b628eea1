// Checkpoints whose files hold flat ranges of boxes: a checkpoint of any layout can be read in any other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <random>

#include "checkpoint/part.h"
#include "checkpoint/reader.h"
#include "checkpoint/reshard.h"
#include "checkpoint/verify.h"
#include "common/status_macros.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One rank's entries, with their bytes.
struct RankFile {
  std::vector<ShardEntry> entries = {};
  std::vector<std::string> bytes = {};
};

// The bytes of a range of a box of a tensor of 4-byte elements.
std::string BytesOfRange(const TensorBytes& tensor, const Box& box, int64_t first, int64_t count) {
  std::string bytes;
  ForEachRun(tensor.shape, box, first, count, [&](int64_t at, int64_t length) {
    bytes.append(tensor.bytes.data() + at * 4, static_cast<size_t>(length) * 4);
    return true;
  });
  return bytes;
}

TensorHeader HeaderOf(const TensorBytes& tensor) {
  return {.name = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape};
}

// Cuts a box in two at a random place, and both parts again, to the given depth. Adds the resulting boxes to `boxes`.
void Divide(Box box, int depth, std::mt19937& random, std::vector<Box>& boxes) {
  const size_t dims = box.size.size();
  const size_t d = dims == 0 ? 0 : random() % dims;
  if (depth == 0 || dims == 0 || box.size[d] < 2) {
    boxes.push_back(std::move(box));
    return;
  }
  Box rest = box;
  box.size[d] = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(box.size[d] - 1));
  rest.start[d] += box.size[d];
  rest.size[d] -= box.size[d];
  Divide(std::move(box), depth - 1, random, boxes);
  Divide(std::move(rest), depth - 1, random, boxes);
}

// Tensors of one to three dimensions.
class BoxesTest : public testing::Test {
 protected:
  BoxesTest() {
    Add("matrix", {7, 9});
    Add("vector", {23});
    Add("cube", {3, 5, 4});
    Add("one", {1});
  }

  void Add(const char* name, std::vector<int64_t> shape) {
    const size_t elements = *CountElements(shape);
    std::vector<float>& values = values_.emplace_back(elements);
    for (size_t i = 0; i < elements; ++i) values[i] = static_cast<float>(++next_);
    tensors_.push_back({.name = name,
                        .role = kParameterRole,
                        .dtype = "F32",
                        .shape = std::move(shape),
                        .bytes = {reinterpret_cast<const char*>(values.data()), elements * 4}});
  }

  std::vector<TensorHeader> Headers() const {
    std::vector<TensorHeader> headers;
    for (const TensorBytes& tensor : tensors_) headers.push_back(HeaderOf(tensor));
    return headers;
  }

  // A random layout: boxes, each divided into flat ranges, which are dealt to the ranks.
  std::vector<RankFile> RandomLayout(std::mt19937& random) const {
    std::vector<RankFile> ranks(1 + random() % 5);
    for (const TensorBytes& tensor : tensors_) {
      std::vector<Box> boxes;
      Divide(WholeBox(tensor.shape), static_cast<int>(random() % 4), random, boxes);
      for (const Box& box : boxes) {
        for (int64_t first = 0, count = 0; first < CountIn(box); first += count) {
          count = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(CountIn(box) - first));
          AddTo(ranks[random() % ranks.size()], tensor, box, first, count);
        }
      }
    }
    return ranks;
  }

  static void AddTo(RankFile& rank, const TensorBytes& tensor, const Box& box, int64_t first, int64_t count) {
    rank.entries.push_back({.tensor = HeaderOf(tensor),
                            .box = box,
                            .first = static_cast<uint64_t>(first),
                            .count = static_cast<uint64_t>(count)});
    rank.bytes.push_back(BytesOfRange(tensor, box, first, count));
  }

  static CheckpointPart WriteFile(const std::string& folder, uint64_t rank, uint64_t world, const RankFile& file) {
    CheckpointPart part{.save = {.step = 4, .generation = 2, .world_size = world}, .rank = rank};
    if (file.entries.empty()) return part;
    auto shard = ShardWriter::Create(folder, ShardName(rank), file.entries, FileSystem::Real(), {.piece_bytes = 20});
    EXPECT_TRUE(shard.ok()) << shard.status();
    for (const std::string& bytes : file.bytes) EXPECT_TRUE((*shard)->Append(bytes).ok());
    absl::StatusOr<WrittenShard> written = (*shard)->Finish();
    EXPECT_TRUE(written.ok()) << written.status();
    part.files = {written->file};
    part.tensors = written->tensors;
    return part;
  }

  // Adds the hashes of a range that the rank of `part` also holds and another rank writes.
  static void Witness(const TensorBytes& tensor, const Box& box, int64_t first, absl::string_view bytes,
                      CheckpointPart& part) {
    const ShardEntry entry{
        .tensor = HeaderOf(tensor), .box = box, .first = static_cast<uint64_t>(first), .count = bytes.size() / 4};
    ManifestTensor witnessed{.name = tensor.name, .role = tensor.role, .dtype = "F32", .shape = tensor.shape};
    witnessed.pieces = CutIntoPieces(entry, 20);
    const EntryHashes hashes = HashEntry(entry, bytes, 20);
    for (size_t i = 0; i < hashes.pieces.size(); ++i) witnessed.pieces[i].hash = hashes.pieces[i];
    part.witnessed.push_back(std::move(witnessed));
  }

  // `change` may change the parts of the ranks.
  absl::StatusOr<std::unique_ptr<Checkpoint>> Write(
      const std::vector<RankFile>& ranks, const std::string& name,
      const std::function<void(std::vector<CheckpointPart>&)>& change = nullptr) {
    const std::string folder = folder_ / name;
    EXPECT_TRUE(FileSystem::Real().MakeFolder(folder).ok());
    std::vector<CheckpointPart> parts;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      parts.push_back(WriteFile(folder, rank, ranks.size(), ranks[rank]));
    }
    if (change != nullptr) change(parts);
    Manifest manifest = SmallManifest(4);
    RETURN_IF_ERROR(AssembleManifest(parts, Headers(), manifest));
    RETURN_IF_ERROR(WriteManifest(folder, ManifestText(manifest), FileSystem::Real()));
    return Checkpoint::Open(folder);
  }

  // Reads what the ranks of another layout hold, and compares it.
  static void ExpectReads(const Checkpoint& checkpoint, const std::vector<RankFile>& layout) {
    for (const RankFile& rank : layout) {
      for (size_t i = 0; i < rank.entries.size(); ++i) {
        const ShardEntry& entry = rank.entries[i];
        std::string out(rank.bytes[i].size(), '\0');
        absl::Status read =
            checkpoint.ReadBoxRange(entry.tensor.role, entry.tensor.name, "F32", entry.tensor.shape, entry.box,
                                    static_cast<int64_t>(entry.first), static_cast<int64_t>(entry.count),
                                    absl::MakeSpan(out.data(), out.size()));
        ASSERT_TRUE(read.ok()) << read;
        ASSERT_EQ(out, rank.bytes[i]) << entry.tensor.name << BoxText(entry.box, entry.tensor.shape) << " "
                                      << entry.first << " + " << entry.count;
      }
    }
  }
  void ExpectWholeTensors(const Checkpoint& checkpoint) {
    for (const TensorBytes& tensor : tensors_) {
      std::string out(tensor.bytes.size(), '\0');
      ASSERT_TRUE(
          checkpoint.ReadTensor(tensor.role, tensor.name, "F32", tensor.shape, absl::MakeSpan(out.data(), out.size()))
              .ok());
      EXPECT_EQ(out, tensor.bytes) << tensor.name;
    }
  }

  TemporaryFolder folder_;
  std::deque<std::vector<float>> values_;
  std::vector<TensorBytes> tensors_;
  int next_ = 0;
};

TEST_F(BoxesTest, AnyLayout_IsReadByAnyOther) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::string name = absl::StrCat("layout-", seed);
    auto checkpoint = Write(RandomLayout(random), name);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();

    for (int reader = 0; reader < 5; ++reader) ExpectReads(**checkpoint, RandomLayout(random));
    ExpectWholeTensors(**checkpoint);
    // The checkpoint itself can be verified and written in another layout.
    auto verified = VerifyCheckpoint(folder_ / name, {});
    ASSERT_TRUE(verified.ok() && verified->problems.empty());
    auto resharded =
        ReshardCheckpoint(**checkpoint, {.ranks = seed % 4}, folder_ / (name + "-new"), FileSystem::Real());
    ASSERT_TRUE(resharded.ok()) << resharded.status();
    ExpectWholeTensors(**Checkpoint::Open(resharded->path));
  }
}

// The matrix is divided into two boxes of columns, the second of which is divided between two ranks; the vector is
// divided into two boxes.
TEST_F(BoxesTest, FilesOfBoxes_NameThemAndHaveTheirShapes) {
  const TensorBytes &matrix = tensors_[0], &vector = tensors_[1], &cube = tensors_[2], &one = tensors_[3];
  std::vector<RankFile> ranks(2);
  AddTo(ranks[0], matrix, {.start = {0, 0}, .size = {7, 4}}, 0, 28);
  AddTo(ranks[1], matrix, {.start = {0, 4}, .size = {7, 5}}, 0, 30);
  AddTo(ranks[0], matrix, {.start = {0, 4}, .size = {7, 5}}, 30, 5);
  AddTo(ranks[0], vector, {.start = {0}, .size = {11}}, 0, 11);
  AddTo(ranks[1], vector, {.start = {11}, .size = {12}}, 0, 12);
  AddTo(ranks[0], cube, WholeBox(cube.shape), 0, 60);
  AddTo(ranks[1], one, WholeBox(one.shape), 0, 1);
  auto checkpoint = Write(ranks, "named");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();

  auto file = SafetensorsFile::Open(folder_ / "named/shard-00000.safetensors");
  std::vector<std::string> names;
  for (const TensorInfo& info : (*file)->tensors())
    names.push_back(absl::StrCat(info.name, " ", ShapeText(info.shape)));

  EXPECT_THAT(names, ElementsAre("matrix[0:7,0:4] [7, 4]", "matrix[0:7,4:9][30:35] [5]", "vector[0:11] [11]",
                                 "cube [3, 5, 4]"));
  ExpectWholeTensors(**checkpoint);
}

// A rank that needs a few rows or columns does not read the other rows or columns.
TEST_F(BoxesTest, AReader_ReadsOnlyPiecesThatItNeeds) {
  std::vector<RankFile> ranks(1);
  for (const TensorBytes& tensor : tensors_)
    AddTo(ranks[0], tensor, WholeBox(tensor.shape), 0, *CountElements(tensor.shape));
  auto checkpoint = Write(ranks, "whole");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  auto reader = Checkpoint::OpenUnverified(folder_ / "whole");
  std::string out(2 * 4, '\0');

  ASSERT_TRUE((*reader)
                  ->ReadBoxRange(kParameterRole, "matrix", "F32", {7, 9}, {.start = {0, 8}, .size = {7, 1}}, 2, 2,
                                 absl::MakeSpan(out.data(), out.size()))
                  .ok());

  EXPECT_EQ(out, BytesOfRange(tensors_[0], {.start = {0, 8}, .size = {7, 1}}, 2, 2));
  EXPECT_EQ((*reader)->bytes_read(), 2 * 20u) << "of the 13 pieces of 5 elements, those with elements 26 and 35";
}

TEST_F(BoxesTest, BadRequests_AreRefused) {
  std::mt19937 random(1);
  auto checkpoint = *Write(RandomLayout(random), "small");
  std::string out(8, '\0');
  auto read = [&](const Box& box, int64_t first, int64_t count) {
    return checkpoint->ReadBoxRange(kParameterRole, "matrix", "F32", {7, 9}, box, first, count,
                                    absl::MakeSpan(out.data(), out.size()));
  };

  EXPECT_TRUE(read({.start = {0, 4}, .size = {7, 5}}, 33, 2).ok());
  EXPECT_THAT(read({.start = {0, 4}, .size = {7, 5}}, 34, 2).message(),
              HasSubstr("cannot read 2 elements, beginning with element 34, of the box at [0, 4] of size [7, 5]"));
  EXPECT_TRUE(absl::IsInvalidArgument(read({.start = {0, 5}, .size = {7, 5}}, 0, 2)));
  EXPECT_TRUE(absl::IsInvalidArgument(read({.start = {0}, .size = {7}}, 0, 2)));
  EXPECT_TRUE(absl::IsInvalidArgument(read({.start = {0, 0}, .size = {7, 9}}, 0, 3))) << "the buffer holds only 2";
  EXPECT_TRUE(absl::IsInvalidArgument(read({.start = {0, 0}, .size = {7, 9}}, -1, 2)));
}

TEST_F(BoxesTest, BoxesThatOverlapOrLeaveAGap_AreRefused) {
  auto write = [&](const Box& second, const char* name) {
    std::vector<RankFile> ranks(2);
    AddTo(ranks[0], tensors_[0], {.start = {0, 0}, .size = {7, 4}}, 0, 28);
    AddTo(ranks[1], tensors_[0], second, 0, CountIn(second));
    for (size_t i = 1; i < tensors_.size(); ++i) {
      AddTo(ranks[0], tensors_[i], WholeBox(tensors_[i].shape), 0, *CountElements(tensors_[i].shape));
    }
    return Write(ranks, name).status();
  };

  EXPECT_TRUE(write({.start = {0, 4}, .size = {7, 5}}, "right").ok());
  EXPECT_THAT(write({.start = {0, 5}, .size = {7, 4}}, "gap").message(),
              HasSubstr("parameter 'matrix' has 63 elements, but its pieces hold 56"));
  EXPECT_THAT(write({.start = {0, 3}, .size = {7, 5}}, "overlap").message(),
              HasSubstr("parameter 'matrix' has pieces that overlap"));
}

TEST_F(BoxesTest, ABoxOutsideOfItsTensor_CannotBeWritten) {
  const ShardEntry entry{.tensor = HeaderOf(tensors_[0]), .box = {.start = {0, 5}, .size = {7, 5}}, .count = 35};

  absl::Status status = ShardWriter::Create(folder_ / "", "shard", {entry}, FileSystem::Real()).status();

  EXPECT_THAT(status.message(), HasSubstr("of box [0, 5] + [7, 5] of tensor 'matrix'"));
}

// Ranks compare their copies of the same box; equal ranges of different boxes are different elements.
TEST_F(BoxesTest, CopiesOfABox_AreComparedByBox) {
  const Box left{.start = {0, 0}, .size = {7, 4}}, right{.start = {0, 4}, .size = {7, 5}};
  auto write = [&](const char* name, const Box& box, const std::string& bytes) {
    std::vector<RankFile> ranks(3);
    AddTo(ranks[0], tensors_[0], left, 0, 28);
    AddTo(ranks[1], tensors_[0], right, 0, 28);
    AddTo(ranks[1], tensors_[0], right, 28, 7);
    for (size_t i = 1; i < tensors_.size(); ++i) {
      AddTo(ranks[0], tensors_[i], WholeBox(tensors_[i].shape), 0, *CountElements(tensors_[i].shape));
    }
    return Write(ranks, name,
                 [&](std::vector<CheckpointPart>& parts) { Witness(tensors_[0], box, 0, bytes, parts[2]); })
        .status();
  };
  const std::string of_left = BytesOfRange(tensors_[0], left, 0, 28);
  const std::string of_right = BytesOfRange(tensors_[0], right, 0, 28);

  EXPECT_EQ(write("equal", left, of_left), absl::OkStatus());
  EXPECT_EQ(write("equal too", right, of_right), absl::OkStatus());
  EXPECT_THAT(write("differ", left, of_right).message(),
              HasSubstr("ranks 0 and 2 should hold the same values and do not: elements [0, 5) of parameter "
                        "'matrix'[0:7,0:4]"));
  EXPECT_THAT(write("unwritten", {.start = {0, 1}, .size = {7, 4}}, of_left).message(),
              HasSubstr("rank 2 holds elements [0, 5) of parameter 'matrix'[0:7,1:5], which no rank has written"));
}

TEST_F(BoxesTest, ADamagedBox_IsNamed) {
  std::vector<RankFile> ranks(1);
  AddTo(ranks[0], tensors_[0], {.start = {0, 0}, .size = {7, 4}}, 0, 28);
  AddTo(ranks[0], tensors_[0], {.start = {0, 4}, .size = {7, 5}}, 0, 35);
  for (size_t i = 1; i < tensors_.size(); ++i) {
    AddTo(ranks[0], tensors_[i], WholeBox(tensors_[i].shape), 0, *CountElements(tensors_[i].shape));
  }
  const uint64_t in_first_box = (*Write(ranks, "good"))->manifest().tensors[0].pieces[0].first_byte;

  FlipByte(folder_ / "good/shard-00000.safetensors", in_first_box);

  EXPECT_THAT(Checkpoint::Open(folder_ / "good").status().message(), HasSubstr("parameter 'matrix'"));
}

}  // namespace
}  // namespace trainyard
