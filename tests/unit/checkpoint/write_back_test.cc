// Ranges of a long file are written back to the disk while later ranges are written, so that the final sync is short.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/fault_points.h"
#include "checkpoint/shard_writer.h"
#include "tests/unit/checkpoint/recording_disk.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kChunk = 256 << 10;  // bytes written to a file at a time

class WriteBackTest : public testing::Test {
 protected:
  // Writes one tensor of `bytes` bytes, with write-back in ranges of two chunks.
  absl::StatusOr<WrittenShard> Write(FileSystem& disk, uint64_t bytes, const EntryHashes* hashes = nullptr) {
    const std::string values = Values(bytes);
    auto shard = ShardWriter::Create(folder_.path(), "shard-00000.safetensors", {Entry(bytes)}, disk,
                                     {.write_back_bytes = 2 * kChunk});
    if (!shard.ok()) return shard.status();
    absl::Status appended = (*shard)->Append(values, hashes);
    if (!appended.ok()) return appended;
    return (*shard)->Finish();
  }
  static ShardEntry Entry(uint64_t bytes) {
    return {.tensor = {.name = "w", .role = "parameter", .dtype = "F32", .shape = {static_cast<int64_t>(bytes / 4)}},
            .count = bytes / 4};
  }
  static std::string Values(uint64_t bytes) { return std::string(bytes, '\1'); }

  TemporaryFolder folder_;
  RecordingDisk disk_;
};

TEST_F(WriteBackTest, EachRangeIsStarted_ThenTheRangeBeforeItIsAwaited_AndTheSyncIsLast) {
  ASSERT_TRUE(Write(disk_, 5 * kChunk + 40).ok());

  const std::vector<std::string> calls = disk_.calls();
  const uint64_t header = std::stoull(calls.at(0).substr(7));
  const std::string chunk = absl::StrCat("append ", kChunk);
  auto range = [&](const char* what, uint64_t first, uint64_t last) {
    auto at = [&](uint64_t chunks) { return chunks == 0 ? 0 : header + chunks * kChunk; };
    return absl::StrCat(what, " ", at(first), "-", at(last));
  };
  EXPECT_THAT(calls, ElementsAre(absl::StrCat("append ", header), chunk, chunk, range("start", 0, 2), chunk, chunk,
                                 range("start", 2, 4), range("await", 0, 2), chunk, "append 40", "sync"));
}

TEST_F(WriteBackTest, ShortFile_IsOnlySynced) {
  ASSERT_TRUE(Write(disk_, 1000).ok());

  EXPECT_THAT(disk_.calls(), ElementsAre(HasSubstr("append "), "append 1000", "sync"));
}

TEST_F(WriteBackTest, DiskError_EndsTheWriting) {
  disk_.on_call = [](const std::string& call) {
    return call.starts_with("await") ? absl::UnknownError("Input/output error") : absl::OkStatus();
  };

  EXPECT_THAT(Write(disk_, 8 * kChunk).status().message(), HasSubstr("Input/output error"));
}

TEST_F(WriteBackTest, WriteBack_HasAFaultPoint) {
  auto rules = ParseFaultRules("point=writeback:shard:before,nth=2,do=enospc");
  ASSERT_TRUE(rules.ok()) << rules.status();
  FaultPoints points(*rules, 0, 1, FaultEffects{});
  auto faulty = NewFaultyFileSystem(disk_, points);

  EXPECT_TRUE(absl::IsResourceExhausted(Write(*faulty, 8 * kChunk).status()));
}

TEST_F(WriteBackTest, HashesComputedBefore_EqualThoseOfTheWriter) {
  const uint64_t bytes = 3 * kChunk;
  std::string values = Values(bytes);
  const EntryHashes hashes = HashEntry(Entry(bytes), values);

  auto hashed_before = Write(disk_, bytes, &hashes);
  std::filesystem::remove(folder_ / "shard-00000.safetensors");
  auto hashed_by_writer = Write(disk_, bytes);

  ASSERT_TRUE(hashed_before.ok() && hashed_by_writer.ok());
  EXPECT_EQ(hashed_before->file.hash, hashed_by_writer->file.hash);
  EXPECT_EQ(hashed_before->tensors[0].pieces[0].hash, hashed_by_writer->tensors[0].pieces[0].hash);
  EXPECT_FALSE(hashes.nonfinite);
  values.assign(bytes, '\xff');
  EXPECT_TRUE(HashEntry(Entry(bytes), values).nonfinite);
}

}  // namespace
}  // namespace trainyard
