// Checks that a file is hashed as a whole while only ranges of it are requested.
#include "checkpoint/shard_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/read_error.h"
#include "checkpoint/reader.h"
#include "checkpoint/verify.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

class ShardFileTest : public ::testing::Test {
 protected:
  ShardFileTest() {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i * i % 251);
    EXPECT_TRUE(WriteFileAtomically(folder_ / "f", bytes_).ok());
    file_ = *ShardFile::Open(folder_.path(), listed());
  }
  ManifestFile listed() const { return {.name = "f", .bytes = bytes_.size(), .hash = HashHex(bytes_)}; }
  void Read(uint64_t at, uint64_t length) {
    std::string out(length, '\0');
    ASSERT_TRUE(file_->Read(at, absl::MakeSpan(out.data(), out.size())).ok());
    EXPECT_EQ(out, bytes_.substr(at, length));
  }

  const TemporaryFolder folder_;
  std::string bytes_ = std::string(3 * kReadBytes + 777, '\0');
  std::unique_ptr<ShardFile> file_;
};

TEST_F(ShardFileTest, ReadInOrder_IsReadOnce) {
  file_->BeginVerifying();
  for (uint64_t at = 500; at + 100000 < bytes_.size(); at += 130000) Read(at, 100000);

  EXPECT_TRUE(file_->FinishVerifying().ok());

  EXPECT_EQ(file_->bytes_read(), bytes_.size());
}

TEST_F(ShardFileTest, ReadInAnyOrder_IsReadTwiceAtMost) {
  file_->BeginVerifying();
  Read(2 * kReadBytes, 1000);
  Read(10, 1000);
  Read(2 * kReadBytes + 500, 1000);  // half of it was read before

  EXPECT_TRUE(file_->FinishVerifying().ok());

  EXPECT_EQ(file_->bytes_read(), bytes_.size() + 1000 + 500);
}

TEST_F(ShardFileTest, WithoutBeginVerifying_OnlyRequestedBytesAreRead) {
  Read(5000, 10);

  EXPECT_EQ(file_->bytes_read(), 10u);
}

TEST_F(ShardFileTest, AnyFlippedByte_IsDetected_RequestedOrNot) {
  for (uint64_t at : {uint64_t{0}, uint64_t{5500}, 2 * kReadBytes, bytes_.size() - 1}) {
    FlipByte(folder_ / "f", at);
    auto file = *ShardFile::Open(folder_.path(), listed());
    file->BeginVerifying();
    std::string out(1000, '\0');
    ASSERT_TRUE(file->Read(5000, absl::MakeSpan(out.data(), out.size())).ok());

    absl::Status status = file->FinishVerifying();

    EXPECT_TRUE(absl::IsDataLoss(status)) << at;
    EXPECT_THAT(std::string(status.message()), HasSubstr(folder_ / "f"));
    FlipByte(folder_ / "f", at);
  }
}

TEST_F(ShardFileTest, FileThatChangesLength_IsDamaged_AndOneThatCannotBeReadIsNot) {
  ManifestFile longer = listed();
  ++longer.bytes;
  EXPECT_TRUE(absl::IsDataLoss(ShardFile::Open(folder_.path(), longer).status()));
  std::filesystem::resize_file(folder_ / "f", 100);
  std::string out(1000, '\0');
  EXPECT_TRUE(absl::IsDataLoss(file_->Read(5000, absl::MakeSpan(out.data(), out.size()))));

  // Reading /proc/self/mem at address 0 fails with EIO, as a failing disk does.
  auto failing = ShardFile::Open("/proc/self", {.name = "mem", .bytes = 0});
  ASSERT_TRUE(failing.ok()) << failing.status();
  absl::Status status = (*failing)->Read(0, absl::MakeSpan(out.data(), out.size()));
  EXPECT_TRUE(IsFailedRead(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("Input/output error"));
}

// Ranks divide the verification of a checkpoint into shares. For any flipped byte and any number of shares, exactly one
// share detects the damage. Its error names the tensor if the byte is not in the header.
TEST(SharedVerifyingTest, EachFileIsHashedByOneShare) {
  TemporaryFolder folder;
  SmallState state(1);
  const std::string path = WriteCheckpoint(folder.path(), SmallManifest(1), state.tensors(), FileSystem::Real())->path;
  const std::string shard = path + "/shard-00000.safetensors";
  // Behind the header are the tensors of SmallState: one of 4 x 6 elements and one of 6, in each of three roles.
  const uint64_t header = std::filesystem::file_size(shard) - 3 * (4 * 6 + 6) * sizeof(float);
  for (int shares : {1, 2, 3}) {
    for (uint64_t at = 0; at < std::filesystem::file_size(shard); at += 41) {
      FlipByte(shard, at);
      int found = 0;
      for (int share = 0; share < shares; ++share) {
        auto checkpoint = Checkpoint::OpenUnverified(path);
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
        (*checkpoint)->BeginVerifying(share, shares);
        absl::Status status = (*checkpoint)->FinishVerifying();
        found += !status.ok();
        if (!status.ok() && at >= header) {
          EXPECT_THAT(std::string(status.message()), HasSubstr(".safetensors, "));
        }
      }
      EXPECT_EQ(found, 1) << "byte " << at << ", " << shares << " shares";
      FlipByte(shard, at);
    }
  }
}

}  // namespace
}  // namespace trainyard
