// The outbox's file on a real disk, and the writer thread with a storage that refuses writes.
#include "worker/agent/outbox_writer.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "absl/synchronization/notification.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard::agent {
namespace {

class OutboxFileTest : public ::testing::Test {
 protected:
  void SetUp() override { file_ = NewOutboxFile(JoinPath(folder_, "outbox")); }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  std::unique_ptr<OutboxStorage> file_;
};

TEST_F(OutboxFileTest, ReplaceAndAppend_AreReadByTheNextIncarnation) {
  EXPECT_EQ(*file_->Read(), "");
  ASSERT_EQ(file_->Replace("head"), absl::OkStatus());
  ASSERT_EQ(file_->Append("-a"), absl::OkStatus());
  ASSERT_EQ(file_->Append("-b"), absl::OkStatus());
  EXPECT_EQ(*NewOutboxFile(JoinPath(folder_, "outbox"))->Read(), "head-a-b");

  // Bytes appended after a replacement go to the new file.
  ASSERT_EQ(file_->Replace("new"), absl::OkStatus());
  ASSERT_EQ(file_->Append("-c"), absl::OkStatus());

  EXPECT_EQ(*file_->Read(), "new-c");
}

TEST_F(OutboxFileTest, FullDisk_IsReportedWithThePath) {
  auto full = NewOutboxFile("/dev/full");

  absl::Status status = full->Append("a");

  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(status.message().find("/dev/full"), absl::string_view::npos);
}

TEST_F(OutboxFileTest, RemovedFile_AcceptsNoMoreWrites) {
  ASSERT_EQ(file_->Replace("head"), absl::OkStatus());
  ASSERT_EQ(file_->Append("-a"), absl::OkStatus());
  std::filesystem::remove(JoinPath(folder_, "outbox"));

  EXPECT_TRUE(absl::IsNotFound(file_->Append("-b")));

  ASSERT_EQ(file_->Replace("head-a-b"), absl::OkStatus());
  EXPECT_EQ(file_->Append("-c"), absl::OkStatus());
  EXPECT_EQ(*file_->Read(), "head-a-b-c");
}

class RefusingStorage final : public OutboxStorage {
 public:
  absl::StatusOr<std::string> Read() override { return bytes; }
  absl::Status Append(absl::string_view more) override {
    if (!refusal.ok()) return refusal;
    bytes.append(more.data(), more.size());
    return absl::OkStatus();
  }
  absl::Status Replace(absl::string_view all) override {
    bytes.clear();
    return Append(all);
  }
  std::string bytes;
  absl::Status refusal;
};

TEST(OutboxWriter, ReportsTheResultOfEachWriteAndCompletesTheLastOneBeforeItEnds) {
  RefusingStorage storage;
  absl::Status reported;
  auto reported_now = std::make_unique<absl::Notification>();
  auto post = [&](Event event) {
    reported = std::get<FactsStored>(event).status;
    reported_now->Notify();
  };
  auto writer = std::make_unique<OutboxWriter>(storage, post);
  writer->Write({"head", /*replace=*/true});
  reported_now->WaitForNotification();
  EXPECT_EQ(reported, absl::OkStatus());
  storage.refusal = absl::ResourceExhaustedError("full");
  reported_now = std::make_unique<absl::Notification>();
  writer->Write({"-a", /*replace=*/false});
  reported_now->WaitForNotification();
  EXPECT_TRUE(absl::IsResourceExhausted(reported));

  storage.refusal = absl::OkStatus();
  reported_now = std::make_unique<absl::Notification>();
  writer->Write({"-b", /*replace=*/false});
  writer = nullptr;

  EXPECT_EQ(storage.bytes, "head-b");
}

}  // namespace
}  // namespace trainyard::agent
