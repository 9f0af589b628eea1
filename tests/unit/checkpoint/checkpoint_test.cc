// Writing and reading whole checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include <filesystem>
#include <set>

#include "checkpoint/catalog.h"
#include "checkpoint/import_writer.h"
#include "checkpoint/reader.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

std::string Write(const TemporaryFolder& folder, uint64_t step, float salt = 0) {
  SmallState state(salt);
  auto saved = WriteCheckpoint(folder.path(), SmallManifest(step), state.tensors(), FileSystem::Real());
  EXPECT_TRUE(saved.ok()) << saved.status();
  return saved.ok() ? saved->path : "";
}

std::set<std::string> Names(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

TEST(CheckpointTest, WriteThenRead_ReturnsEveryByte) {
  TemporaryFolder folder;
  SmallState state(3);

  auto saved = WriteCheckpoint(folder.path(), SmallManifest(100), state.tensors(), FileSystem::Real());
  ASSERT_TRUE(saved.ok()) << saved.status();
  auto checkpoint = Checkpoint::Open(saved->path);

  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(saved->path, folder / "step-00000100");
  EXPECT_EQ(saved->manifest_hash, (*checkpoint)->manifest_hash());
  EXPECT_EQ(Names(folder.path()), std::set<std::string>{"step-00000100"});
  EXPECT_EQ((*checkpoint)->manifest().data.consumed_samples, 800u);
  for (const TensorBytes& tensor : state.tensors()) {
    std::string bytes(tensor.bytes.size(), '\0');
    ASSERT_TRUE(
        (*checkpoint)
            ->ReadTensor(tensor.role, tensor.name, "F32", tensor.shape, absl::MakeSpan(bytes.data(), bytes.size()))
            .ok());
    EXPECT_EQ(bytes, tensor.bytes) << tensor.role << " " << tensor.name;
  }
}

TEST(CheckpointTest, Write_OfAnExistingStep_ReplacesIt) {
  TemporaryFolder folder;
  Write(folder, 5, /*salt=*/1);

  std::string path = Write(folder, 5, /*salt=*/50);

  auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::string bytes(24, '\0');
  ASSERT_TRUE(
      (*checkpoint)->ReadTensor("parameter", "ln_f.bias", "F32", {6}, absl::MakeSpan(bytes.data(), bytes.size())).ok());
  EXPECT_EQ(bytes, SmallState(50).Bytes("parameter", "ln_f.bias"));
  EXPECT_EQ(Names(folder.path()), std::set<std::string>{"step-00000005"});
}

TEST(CheckpointTest, Open_WithAnyFlippedByte_Fails) {
  TemporaryFolder folder;
  std::string path = Write(folder, 7);
  for (const char* name : {"manifest.json", "shard-00000.safetensors"}) {
    std::string file = JoinPath(path, name);
    size_t size = ReadFile(file)->size();
    for (size_t at = 0; at < size; at += name[0] == 's' ? 1 : 17) {
      FlipByte(file, at);

      EXPECT_FALSE(Checkpoint::Open(path).ok()) << name << " byte " << at;

      FlipByte(file, at);
    }
  }
  EXPECT_TRUE(Checkpoint::Open(path).ok());
}

TEST(CheckpointTest, Open_OfADamagedCheckpoint_NamesTheFile) {
  TemporaryFolder folder;
  std::string shard = "/shard-00000.safetensors";
  std::string cut = Write(folder, 1), flipped = Write(folder, 2), extra = Write(folder, 3), missing = Write(folder, 4);
  std::filesystem::resize_file(cut + shard, std::filesystem::file_size(cut + shard) - 4);
  FlipByte(flipped + shard, std::filesystem::file_size(flipped + shard) - 1);
  ASSERT_TRUE(WriteFileAtomically(extra + "/notes.txt", "mine").ok());
  std::filesystem::remove(missing + shard);

  EXPECT_THAT(std::string(Checkpoint::Open(cut).status().message()), HasSubstr(cut + shard));
  EXPECT_THAT(std::string(Checkpoint::Open(flipped).status().message()), HasSubstr(flipped + shard + ", exp"));
  EXPECT_THAT(std::string(Checkpoint::Open(extra).status().message()),
              HasSubstr("notes.txt: expected only what the manifest lists"));
  EXPECT_THAT(std::string(Checkpoint::Open(missing).status().message()), HasSubstr("found nothing: it is missing"));
  EXPECT_EQ(Checkpoint::Open(folder / "step-00000009").status().code(), absl::StatusCode::kNotFound);
}

TEST(CheckpointTest, OpenUnverified_DetectsMissingFilesImmediately_AndAFlippedByteWhenRead) {
  TemporaryFolder folder;
  const std::string path = Write(folder, 1), shard = path + "/shard-00000.safetensors";
  FlipByte(shard, std::filesystem::file_size(shard) - 1);  // in exp_avg_sq ln_f.bias

  auto checkpoint = Checkpoint::OpenUnverified(path);

  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::string bytes(24, '\0');
  const absl::Span<char> out = absl::MakeSpan(bytes.data(), bytes.size());
  EXPECT_TRUE((*checkpoint)->ReadTensor("parameter", "ln_f.bias", "F32", {6}, out).ok());
  EXPECT_TRUE(absl::IsDataLoss((*checkpoint)->ReadTensor("exp_avg_sq", "ln_f.bias", "F32", {6}, out)));
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 4);
  EXPECT_TRUE(absl::IsDataLoss(Checkpoint::OpenUnverified(path).status()));
}

TEST(CheckpointTest, ReadTensor_OfAnotherModel_ReportsBothShapes) {
  TemporaryFolder folder;
  auto checkpoint = Checkpoint::Open(Write(folder, 1));
  ASSERT_TRUE(checkpoint.ok());
  std::string bytes(96, '\0');

  absl::Status shape =
      (*checkpoint)->ReadTensor("parameter", "wte.weight", "F32", {6, 4}, absl::MakeSpan(bytes.data(), bytes.size()));
  absl::Status name =
      (*checkpoint)->ReadTensor("parameter", "wpe.weight", "F32", {6, 4}, absl::MakeSpan(bytes.data(), bytes.size()));

  EXPECT_EQ(shape.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(shape.message()), HasSubstr("F32 [4, 6], this job needs F32 [6, 4]"));
  EXPECT_EQ(name.code(), absl::StatusCode::kNotFound);
}

TEST(CheckpointTest, ReadBox_OfAnyBox_ReturnsItsElements) {
  TemporaryFolder folder;
  auto checkpoint = Checkpoint::Open(Write(folder, 1));
  ASSERT_TRUE(checkpoint.ok());
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t column = 0; column < 6; ++column) {
      std::vector<float> out((4 - row) * (6 - column));

      Box box{.start = {row, column}, .size = {4 - row, 6 - column}};
      absl::Status status = (*checkpoint)
                                ->ReadBox("parameter", "wte.weight", box,
                                          absl::MakeSpan(reinterpret_cast<char*>(out.data()), out.size() * 4));

      ASSERT_TRUE(status.ok()) << status;
      for (int64_t r = row; r < 4; ++r) {
        for (int64_t c = column; c < 6; ++c) {
          EXPECT_EQ(out[(r - row) * (6 - column) + c - column], 100 + static_cast<float>(r * 6 + c));
        }
      }
    }
  }
}

// A tensor of [3, 4] in two column slices, the right one cut into two flat ranges, as other layouts may write.
TEST(CheckpointTest, ReadBox_FromColumnSlicesAndFlatRanges_CombinesThem) {
  TemporaryFolder folder;
  std::string path = folder / "step-00000001";
  ASSERT_TRUE(MakeFolders(path).ok());
  std::vector<TensorInfo> infos = {{.name = "left", .dtype = "F32", .shape = {3, 1}},
                                   {.name = "right", .dtype = "F32", .shape = {9}}};
  std::string header = SafetensorsHeader(infos, {});
  const std::vector<float> values = {0, 4, 8, /* right: */ 1, 2, 3, 5, 6, 7, 9, 10, 11};
  std::string data(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  ASSERT_TRUE(WriteFileAtomically(path + "/s.safetensors", header + data).ok());
  auto piece = [&](std::vector<int64_t> start, std::vector<int64_t> size, uint64_t first, uint64_t last, uint64_t at) {
    uint64_t bytes = (last - first) * 4;
    return ManifestPiece{.file = "s.safetensors",
                         .start = start,
                         .size = size,
                         .first_element = first,
                         .last_element = last,
                         .first_byte = header.size() + at,
                         .last_byte = header.size() + at + bytes,
                         .hash = HashHex(absl::string_view(data).substr(at, bytes))};
  };
  Manifest manifest = SmallManifest(1);
  manifest.files = {{.name = "s.safetensors", .bytes = header.size() + data.size(), .hash = HashHex(header + data)}};
  manifest.tensors = {
      {.name = "w",
       .role = "parameter",
       .dtype = "F32",
       .shape = {3, 4},
       .pieces = {piece({0, 0}, {3, 1}, 0, 3, 0), piece({0, 1}, {3, 3}, 0, 5, 12), piece({0, 1}, {3, 3}, 5, 9, 32)}}};
  ASSERT_TRUE(WriteFileAtomically(path + "/manifest.json", ManifestText(manifest)).ok());

  auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::vector<float> whole(12), part(4);
  auto bytes = [](std::vector<float>& v) { return absl::MakeSpan(reinterpret_cast<char*>(v.data()), v.size() * 4); };
  ASSERT_TRUE((*checkpoint)->ReadTensor("parameter", "w", "F32", {3, 4}, bytes(whole)).ok());
  ASSERT_TRUE((*checkpoint)->ReadBox("parameter", "w", {.start = {1, 0}, .size = {2, 2}}, bytes(part)).ok());

  EXPECT_THAT(whole, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(part, testing::ElementsAre(4, 5, 8, 9));
  for (int64_t first = 0; first <= 12; ++first) {
    for (int64_t count = 0; first + count <= 12; ++count) {
      std::vector<float> range(static_cast<size_t>(count));
      absl::Status status = (*checkpoint)->ReadRange("parameter", "w", "F32", {3, 4}, first, count, bytes(range));
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(std::equal(range.begin(), range.end(), whole.begin() + first)) << first << " + " << count;
    }
  }
  EXPECT_EQ((*checkpoint)->ReadRange("parameter", "w", "F32", {3, 4}, 9, 4, bytes(part)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*checkpoint)->ReadRange("parameter", "w", "F64", {3, 4}, 0, 4, bytes(part)).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(CheckpointTest, ReadRange_OfATensorOfThreeDimensions_ReturnsItsElements) {
  TemporaryFolder folder;
  std::vector<float> values(2 * 3 * 5);
  std::iota(values.begin(), values.end(), 0.0f);
  absl::string_view all(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  auto saved = WriteCheckpoint(folder.path(), SmallManifest(1),
                               {{.name = "w", .role = "parameter", .dtype = "F32", .shape = {2, 3, 5}, .bytes = all}},
                               FileSystem::Real());
  ASSERT_TRUE(saved.ok()) << saved.status();
  auto checkpoint = Checkpoint::Open(saved->path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();

  for (int64_t first = 0; first < 30; ++first) {
    for (int64_t count = 1; first + count <= 30; ++count) {
      std::vector<float> range(static_cast<size_t>(count));
      absl::Span<char> out(reinterpret_cast<char*>(range.data()), range.size() * 4);
      ASSERT_TRUE((*checkpoint)->ReadRange("parameter", "w", "F32", {2, 3, 5}, first, count, out).ok());
      ASSERT_TRUE(std::equal(range.begin(), range.end(), values.begin() + first)) << first << " + " << count;
    }
  }
}

TEST(CheckpointTest, Write_FromAStream_AcceptsOnlyTheAnnouncedTensors) {
  TemporaryFolder folder;
  const std::string four(4, 'x'), eight(8, 'y');
  const std::vector<TensorHeader> headers = {{.name = "a", .role = "parameter", .dtype = "F32", .shape = {2}},
                                             {.name = "b", .role = "parameter", .dtype = "F32", .shape = {1}}};
  auto write = [&](const std::vector<std::string>& given) {
    return WriteImportedCheckpoint(
        folder.path(), SmallManifest(1), headers,
        [&](TensorSink sink) {
          for (const std::string& bytes : given) {
            if (absl::Status status = sink(bytes); !status.ok()) return status;
          }
          return absl::OkStatus();
        },
        FileSystem::Real());
  };

  EXPECT_TRUE(absl::IsInternal(write({four}).status())) << "a is twice as long";
  EXPECT_TRUE(absl::IsInternal(write({eight}).status())) << "b is missing";
  EXPECT_TRUE(absl::IsInternal(write({eight, four, four}).status())) << "one tensor too many";
  EXPECT_TRUE(Names(folder.path()).empty());
  auto saved = write({eight, four});
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_TRUE(Checkpoint::Open(saved->path).ok());
}

TEST(CheckpointTest, Write_ToAFullDisk_FailsAtAnyByteAndLeavesNothing) {
  TemporaryFolder folder;
  std::string before = Write(folder, 1);
  int64_t needed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(before)) needed += entry.file_size();
  SmallState state(9);
  for (int64_t free_bytes = 0; free_bytes < needed - 8; free_bytes += 31) {
    FullDisk disk(free_bytes);

    auto saved = WriteCheckpoint(folder.path(), SmallManifest(2), state.tensors(), disk);

    EXPECT_EQ(saved.status().code(), absl::StatusCode::kResourceExhausted) << free_bytes << " bytes free";
    EXPECT_THAT(std::string(saved.status().message()), HasSubstr("step-00000002.g2.partial/"));
    EXPECT_EQ(Names(folder.path()), std::set<std::string>{"step-00000001"});
  }
  EXPECT_TRUE(Checkpoint::Open(before).ok());
}

}  // namespace
}  // namespace trainyard
