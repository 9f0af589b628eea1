// The outbox: what is written at which time, what may be sent, and what the next incarnation of the daemon reads, also
// from a torn file.
#include "worker/agent/outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/limits.h"

namespace trainyard::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const TrainerId kRank0 = {JobId("job23456"), Generation(1), 0};
const TrainerId kRank1 = {JobId("job23456"), Generation(1), 1};

// An outbox and its disk.
struct Disk {
  explicit Disk(std::string file = "", std::string new_id = "first")
      : bytes(std::move(file)), outbox(ReadOutboxFile(bytes).value(), std::move(new_id)) {}

  // The outbox of the next incarnation of the daemon.
  Disk Next() const { return Disk(bytes, "second"); }

  void Save(const TrainerId& id, uint64_t trainer_sequence, uint64_t step) {
    v1::Fact fact;
    *fact.mutable_key() = ToProto(id);
    fact.mutable_saved()->set_step(step);
    outbox.Add(std::move(fact), {.trainer = id, .trainer_sequence = trainer_sequence});
  }
  void Exit(const TrainerId& id) {
    v1::Fact fact;
    *fact.mutable_key() = ToProto(id);
    fact.mutable_exited();
    outbox.Add(std::move(fact), {.trainer = id, .is_exit = true});
  }
  // Writes everything. Returns the number of writes.
  int Sync() {
    int writes = 0;
    for (std::optional<Outbox::Write> write; (write = outbox.TakeWrite()).has_value(); ++writes) {
      bytes = write->replace ? write->bytes : bytes + write->bytes;
      outbox.Stored();
    }
    return writes;
  }
  std::vector<uint64_t> Unsent() {
    std::vector<uint64_t> sequences;
    for (const v1::FactBatch& batch : outbox.TakeUnsent()) {
      for (const v1::Fact& fact : batch.facts()) sequences.push_back(fact.sequence());
    }
    return sequences;
  }

  std::string bytes;
  Outbox outbox;
};

TEST(Outbox, Fact_IsSentOnceItIsOnDisk) {
  Disk disk;
  disk.Save(kRank0, 1, 10);
  EXPECT_THAT(disk.Unsent(), IsEmpty());
  EXPECT_TRUE(disk.outbox.has_unstored());

  disk.Sync();

  EXPECT_FALSE(disk.outbox.has_unstored());
  EXPECT_THAT(disk.Unsent(), ElementsAre(1));
  EXPECT_THAT(disk.Unsent(), IsEmpty());
}

TEST(Outbox, FactsThatArriveDuringAWrite_ShareTheNextWrite) {
  Disk disk;
  disk.Sync();
  disk.Save(kRank0, 1, 10);
  std::optional<Outbox::Write> first = disk.outbox.TakeWrite();
  ASSERT_TRUE(first.has_value());
  for (uint64_t i = 2; i <= 50; ++i) disk.Save(kRank0, i, i);
  EXPECT_FALSE(disk.outbox.TakeWrite().has_value());
  disk.outbox.Stored();
  EXPECT_THAT(disk.Unsent(), ElementsAre(1));

  EXPECT_EQ(disk.Sync(), 1);

  EXPECT_THAT(disk.Unsent(), SizeIs(49));
}

TEST(Outbox, Batches_StayBelowTheLimitsOfTheStream) {
  Disk disk;
  for (int i = 0; i < 200; ++i) {
    v1::Fact fact;
    fact.mutable_exited()->set_message(std::string(2'000, 'x'));
    disk.outbox.Add(std::move(fact), {});
  }
  disk.Sync();

  std::vector<v1::FactBatch> batches = disk.outbox.TakeUnsent();

  uint64_t next = 1;
  for (const v1::FactBatch& batch : batches) {
    EXPECT_LE(batch.facts_size(), static_cast<int>(limits::kFactsPerMessage));
    EXPECT_LE(batch.ByteSizeLong(), limits::kControlMessageBytes);
    for (const v1::Fact& fact : batch.facts()) EXPECT_EQ(fact.sequence(), next++);
  }
  EXPECT_EQ(next, 201);
}

TEST(Outbox, Acknowledge_ReturnsTheOriginsAndKeepsTheRest) {
  Disk disk;
  for (uint64_t i = 1; i <= 3; ++i) disk.Save(kRank0, i, i);
  disk.Sync();
  disk.Unsent();

  std::vector<Outbox::Origin> reported = disk.outbox.Acknowledge(2);
  disk.outbox.Rewind();

  ASSERT_THAT(reported, SizeIs(2));
  EXPECT_EQ(reported[1].trainer_sequence, 2);
  EXPECT_THAT(disk.Unsent(), ElementsAre(3));
}

TEST(Outbox, NextIncarnation_HasTheIdAndTheFactsAndContinuesTheNumbers) {
  Disk disk;
  disk.Save(kRank0, 1, 10);
  disk.Save(kRank0, 2, 20);
  disk.Sync();

  Disk next = disk.Next();
  next.Save(kRank0, 3, 30);
  next.Sync();

  EXPECT_EQ(next.outbox.id(), "first");
  EXPECT_THAT(next.Unsent(), ElementsAre(1, 2, 3));
  EXPECT_EQ(next.outbox.KnownNumbersOf(kRank0).last, 3);
  EXPECT_EQ(next.outbox.KnownNumbersOf(kRank0).durable, 0);
}

TEST(Outbox, Numbers_ContinueWhenAllWasAcknowledgedAndTheFileReplaced) {
  Disk disk;
  for (uint64_t i = 1; i <= 5; ++i) disk.Save(kRank0, i, i);
  disk.Sync();
  disk.Unsent();
  disk.outbox.Acknowledge(5);
  disk.Save(kRank1, 1, 1);  // the write of this fact also stores the acknowledgement
  disk.Sync();

  Disk second = disk.Next();
  second.Sync();
  Disk third = second.Next();

  EXPECT_EQ(third.outbox.size(), 1);
  EXPECT_EQ(third.outbox.KnownNumbersOf(kRank0).durable, 5);
  third.Save(kRank0, 6, 6);
  third.Sync();
  EXPECT_THAT(third.Unsent(), ElementsAre(6, 7));
}

TEST(Outbox, TornEnd_IsCutOffAtEveryByteAndTheRestStays) {
  Disk disk;
  disk.Save(kRank0, 1, 10);
  disk.Sync();
  size_t whole = disk.bytes.size();
  disk.Save(kRank0, 2, 20);
  disk.Sync();

  for (size_t size = whole; size < disk.bytes.size(); ++size) {
    OutboxContents contents = ReadOutboxFile(disk.bytes.substr(0, size)).value();
    ASSERT_EQ(contents.facts.size(), 1) << size;
    ASSERT_EQ(contents.cut_bytes, size - whole);
  }
}

TEST(Outbox, DamagedByte_EndsTheReadableContent) {
  Disk disk;
  for (uint64_t i = 1; i <= 3; ++i) disk.Save(kRank0, i, i);
  disk.Sync();
  std::string damaged = disk.bytes;
  damaged[damaged.size() - 5] ^= 1;

  OutboxContents contents = ReadOutboxFile(damaged).value();

  EXPECT_EQ(contents.facts.size(), 2);
  EXPECT_GT(contents.cut_bytes, 0);
  // Bytes that are not an outbox are read as an empty file. Here the length of the first record reaches beyond the end.
  EXPECT_EQ(ReadOutboxFile(std::string(100, '\xff'))->header.outbox_id(), "");
}

TEST(Outbox, FileOfANewerVersion_IsRefused) {
  v1::OutboxRecord record;
  record.mutable_header()->set_version(kOutboxVersion + 1);

  EXPECT_TRUE(absl::IsFailedPrecondition(ReadOutboxFile(EncodeOutboxRecord(record)).status()));
}

TEST(Outbox, FileIsReplaced_WhenMoreThanHalfIsAcknowledged) {
  Disk disk;
  for (uint64_t i = 1; i <= 200; ++i) {
    v1::Fact fact;
    fact.mutable_exited()->set_message(std::string(1'000, 'x'));
    disk.outbox.Add(std::move(fact), {});
  }
  disk.Sync();
  disk.Unsent();
  size_t before = disk.bytes.size();

  disk.outbox.Acknowledge(80);
  EXPECT_EQ(disk.Sync(), 0);
  disk.outbox.Acknowledge(150);
  EXPECT_EQ(disk.Sync(), 1);

  EXPECT_LT(disk.bytes.size(), before / 2);
  EXPECT_EQ(disk.Next().outbox.size(), 50);
}

TEST(Outbox, FailedWrite_LetsFactsContinueInMemoryUnderANewId) {
  Disk disk;
  disk.Sync();
  disk.Save(kRank0, 1, 10);
  ASSERT_TRUE(disk.outbox.TakeWrite().has_value());

  EXPECT_TRUE(disk.outbox.Failed("memory"));

  EXPECT_EQ(disk.outbox.id(), "memory");
  EXPECT_THAT(disk.Unsent(), ElementsAre(1));
  disk.Save(kRank0, 2, 20);
  EXPECT_FALSE(disk.outbox.TakeWrite().has_value());
  EXPECT_THAT(disk.Unsent(), ElementsAre(2));
  // The disk works again: everything is written, under the new id.
  disk.outbox.RetryDisk();
  EXPECT_EQ(disk.Sync(), 1);
  EXPECT_TRUE(disk.outbox.on_disk());
  EXPECT_EQ(disk.Next().outbox.id(), "memory");
  EXPECT_EQ(disk.Next().outbox.size(), 2);
}

TEST(Outbox, OlderCopyOfTheFile_NumbersItsFactsAboveThoseOfTheCoordinator) {
  Disk copy;
  copy.Save(kRank0, 1, 10);
  copy.Sync();
  Disk restored = copy.Next();
  restored.Save(kRank1, 1, 77);
  restored.Sync();

  // The coordinator had 9 facts of this outbox before the copy was restored.
  std::vector<Outbox::Origin> reported = restored.outbox.Acknowledge(9);
  restored.Sync();

  ASSERT_THAT(reported, SizeIs(1));
  EXPECT_EQ(reported[0].trainer, kRank0);
  EXPECT_THAT(restored.Unsent(), ElementsAre(10));
}

TEST(Outbox, AnotherCluster_ReceivesOnlyTheExits) {
  Disk disk;
  disk.outbox.SetCluster("old");
  disk.Save(kRank0, 1, 10);
  disk.Exit(kRank0);
  disk.Sync();
  Disk next = disk.Next();

  EXPECT_EQ(next.outbox.SetCluster("old"), 0);
  EXPECT_EQ(next.outbox.SetCluster("new"), 1);

  next.Sync();
  EXPECT_THAT(next.Unsent(), ElementsAre(2));
  EXPECT_EQ(next.Next().outbox.cluster_id(), "new");
}

TEST(Outbox, MarksOfATrainer_AreRemovedWithItsExit) {
  Disk disk;
  disk.Save(kRank0, 1, 10);
  disk.Exit(kRank0);
  disk.Sync();
  disk.Unsent();
  disk.outbox.Acknowledge(1);
  EXPECT_EQ(disk.outbox.KnownNumbersOf(kRank0).durable, 1);
  EXPECT_TRUE(disk.outbox.KnownNumbersOf(kRank0).exit_reported);

  disk.outbox.Acknowledge(2);

  EXPECT_EQ(disk.outbox.KnownNumbersOf(kRank0).durable, 0);
}

TEST(Outbox, IsFull_WhenItsBytesReachTheLimit) {
  Disk disk;
  v1::Fact fact;
  fact.mutable_exited()->set_message(std::string(1 << 20, 'x'));
  for (int i = 0; i < 63; ++i) disk.outbox.Add(fact, {});
  EXPECT_FALSE(disk.outbox.full());

  disk.outbox.Add(fact, {});

  EXPECT_TRUE(disk.outbox.full());
}

}  // namespace
}  // namespace trainyard::agent
