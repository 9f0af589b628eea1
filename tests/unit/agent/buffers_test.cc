// The buffers between trainers and the coordinator: facts, reports, and text made fit for messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/limits.h"
#include "worker/agent/outbox.h"
#include "worker/agent/report_buffer.h"

namespace trainyard::agent {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

v1::RankReport Steps(uint64_t first, uint64_t last) {
  v1::RankReport report;
  report.set_last_step(last);
  for (uint64_t step = first; step <= last; ++step) report.add_steps()->set_step(step);
  return report;
}

std::vector<uint64_t> StepsOf(const std::vector<v1::RankReport>& reports) {
  std::vector<uint64_t> steps;
  for (const v1::RankReport& report : reports) {
    for (const v1::StepReport& step : report.steps()) steps.push_back(step.step());
  }
  return steps;
}

TEST(Outbox, Batches_StayBelowTheLimitsOfTheStream) {
  Outbox outbox;
  for (int i = 0; i < 200; ++i) {
    v1::Fact fact;
    fact.mutable_exited()->set_message(std::string(2'000, 'x'));
    outbox.Add(std::move(fact), {});
  }

  std::vector<v1::FactBatch> batches = outbox.TakeUnsent();

  uint64_t next = 1;
  for (const v1::FactBatch& batch : batches) {
    EXPECT_LE(batch.facts_size(), static_cast<int>(limits::kFactsPerMessage));
    EXPECT_LE(batch.ByteSizeLong(), limits::kControlMessageBytes);
    for (const v1::Fact& fact : batch.facts()) EXPECT_EQ(fact.sequence(), next++);
  }
  EXPECT_EQ(next, 201);
  EXPECT_THAT(outbox.TakeUnsent(), IsEmpty());
}

TEST(Outbox, Acknowledge_NamesWhereFactsCameFromAndKeepsTheRest) {
  Outbox outbox;
  TrainerId id = {JobId("a"), Generation(1), 0};
  for (uint64_t i = 1; i <= 3; ++i) outbox.Add({}, {.trainer = id, .trainer_sequence = i});
  outbox.TakeUnsent();

  std::vector<Outbox::Origin> told = outbox.Acknowledge(2);
  outbox.Rewind();

  ASSERT_THAT(told, SizeIs(2));
  EXPECT_EQ(told[1].trainer_sequence, 2);
  ASSERT_THAT(outbox.TakeUnsent(), SizeIs(1));
}

TEST(ReportBuffer, FirstStep_GoesAtOnceAndTheNextAreGathered) {
  ReportBuffer buffer;

  buffer.Add(Steps(1, 1), kStart);
  EXPECT_LE(buffer.due(), kStart);
  buffer.Take(kStart);
  buffer.Add(Steps(2, 2), kStart + absl::Milliseconds(1));
  buffer.Add(Steps(3, 3), kStart + absl::Milliseconds(2));

  EXPECT_EQ(buffer.due(), kStart + absl::Milliseconds(50));
  EXPECT_THAT(StepsOf(buffer.Take(kStart + absl::Milliseconds(50))), ::testing::ElementsAre(2, 3));
  EXPECT_EQ(buffer.due(), absl::InfiniteFuture());
}

TEST(ReportBuffer, ReportsWithoutSteps_AreThinnedToTheNewest) {
  ReportBuffer buffer;
  v1::RankReport report;
  report.set_phase("train");
  buffer.Add(report, kStart);
  buffer.Take(kStart);

  for (uint64_t step = 1; step <= 10; ++step) {
    report.set_last_step(step);
    buffer.Add(report, kStart + absl::Milliseconds(static_cast<int64_t>(step)));
  }

  EXPECT_EQ(buffer.due(), kStart + absl::Milliseconds(500));
  std::vector<v1::RankReport> taken = buffer.Take(kStart + absl::Milliseconds(510));
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_EQ(taken[0].last_step(), 10);
  EXPECT_DOUBLE_EQ(taken[0].age_s(), 0.5);
}

TEST(ReportBuffer, NewStream_BringsAllThatIsKeptInMessagesOfALimitedSize) {
  ReportBuffer buffer;
  for (uint64_t step = 1; step <= 1000; ++step) buffer.Add(Steps(step, step), kStart);
  buffer.Take(kStart);

  buffer.Rewind();
  std::vector<v1::RankReport> again = buffer.Take(kStart);

  EXPECT_THAT(again, SizeIs(4));
  EXPECT_THAT(StepsOf(again), SizeIs(1000));
  for (const v1::RankReport& report : again) {
    EXPECT_LE(report.steps_size(), static_cast<int>(limits::kReportsPerMessage));
    EXPECT_LE(report.ByteSizeLong(), limits::kControlMessageBytes);
  }
}

TEST(ReportBuffer, StepsBeyondTheLimit_AreDroppedOldestFirstAndCounted) {
  ReportBuffer buffer;
  uint64_t total = limits::kDaemonReports + 10;

  for (uint64_t step = 1; step <= total; ++step) buffer.Add(Steps(step, step), kStart);
  std::vector<v1::RankReport> taken = buffer.Take(kStart);

  EXPECT_EQ(StepsOf(taken).front(), 11);
  EXPECT_EQ(StepsOf(taken).back(), total);
  EXPECT_EQ(taken.front().dropped_steps(), 10);
  EXPECT_EQ(taken.back().dropped_steps(), 0);
}

TEST(ReportBuffer, StepsThatWereSentBeforeTheyFellOut_CountAsToldNotAsDropped) {
  ReportBuffer buffer;
  for (uint64_t step = 1; step <= limits::kDaemonReports; ++step) buffer.Add(Steps(step, step), kStart);
  buffer.Take(kStart);

  buffer.Add(Steps(5000, 5000), kStart);

  EXPECT_EQ(buffer.Take(kStart + absl::Seconds(1)).back().dropped_steps(), 0);
}

TEST(ReportBuffer, StepsTheTrainerDropped_AreToldOnceEach) {
  ReportBuffer buffer;
  std::vector<uint64_t> told;
  v1::RankReport report;
  for (uint64_t dropped : {3, 3, 5}) {
    report.set_dropped_steps(dropped);
    buffer.Add(report, kStart);
    told.push_back(buffer.Take(kStart).back().dropped_steps());
  }

  EXPECT_THAT(told, ::testing::ElementsAre(3, 0, 2));
}

TEST(ReportBuffer, StepSaidTwice_IsKeptOnce) {
  ReportBuffer buffer;
  buffer.Add(Steps(1, 5), kStart);

  buffer.Add(Steps(3, 7), kStart);

  EXPECT_THAT(StepsOf(buffer.Take(kStart)), ::testing::ElementsAre(1, 2, 3, 4, 5, 6, 7));
}

TEST(ReportBuffer, Evaluation_FollowsItsStep) {
  ReportBuffer buffer;
  for (uint64_t step = 1; step <= 300; ++step) {
    v1::RankReport report = Steps(step, step);
    if (step % 100 == 0) report.add_evals()->set_step(step);
    buffer.Add(report, kStart);
  }

  std::vector<v1::RankReport> taken = buffer.Take(kStart);

  ASSERT_THAT(taken, SizeIs(2));
  EXPECT_EQ(taken[0].evals_size(), 2);
  EXPECT_EQ(taken[1].evals(0).step(), 300);
}

}  // namespace
}  // namespace trainyard::agent
