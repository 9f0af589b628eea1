// The buffer in which the daemon stores the reports of a trainer for the coordinator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "common/limits.h"
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

TEST(ReportBuffer, FirstStep_IsSentImmediatelyAndTheNextAreGathered) {
  ReportBuffer buffer;

  buffer.Add(Steps(1, 1), kStart);
  EXPECT_LE(buffer.due(), kStart);
  buffer.TakeUnsent(kStart);
  buffer.Add(Steps(2, 2), kStart + absl::Milliseconds(1));
  buffer.Add(Steps(3, 3), kStart + absl::Milliseconds(2));

  EXPECT_EQ(buffer.due(), kStart + absl::Milliseconds(50));
  EXPECT_THAT(StepsOf(buffer.TakeUnsent(kStart + absl::Milliseconds(50))), ::testing::ElementsAre(2, 3));
  EXPECT_EQ(buffer.due(), absl::InfiniteFuture());
}

TEST(ReportBuffer, ReportsWithoutSteps_AreThinnedToTheNewest) {
  ReportBuffer buffer;
  v1::RankReport report;
  report.set_phase("train");
  buffer.Add(report, kStart);
  buffer.TakeUnsent(kStart);

  for (uint64_t step = 1; step <= 10; ++step) {
    report.set_last_step(step);
    buffer.Add(report, kStart + absl::Milliseconds(static_cast<int64_t>(step)));
  }

  EXPECT_EQ(buffer.due(), kStart + absl::Milliseconds(500));
  std::vector<v1::RankReport> reports = buffer.TakeUnsent(kStart + absl::Milliseconds(510));
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].last_step(), 10);
  EXPECT_DOUBLE_EQ(reports[0].age_s(), 0.5);
}

std::vector<uint64_t> CheckpointsOf(const std::vector<v1::RankReport>& reports) {
  std::vector<uint64_t> steps;
  for (const v1::RankReport& report : reports) {
    if (report.has_script_checkpoint()) steps.push_back(report.script_checkpoint().step());
  }
  return steps;
}

void Save(ReportBuffer& buffer, uint64_t step, uint64_t save_request = 0) {
  v1::RankReport report = Steps(step, step);
  report.mutable_script_checkpoint()->set_step(step);
  report.mutable_script_checkpoint()->set_save_request(save_request);
  buffer.Add(report, kStart);
}

TEST(ReportBuffer, EachCheckpointOfAScript_IsSentInOrderAfterTheSteps_AndAgainOnANewStream) {
  ReportBuffer buffer;
  Save(buffer, 1);
  EXPECT_THAT(CheckpointsOf(buffer.TakeUnsent(kStart)), ::testing::ElementsAre(1));
  for (uint64_t step : {2, 3, 4}) Save(buffer, step);

  std::vector<v1::RankReport> reports = buffer.TakeUnsent(kStart + absl::Seconds(1));
  EXPECT_THAT(CheckpointsOf(reports), ::testing::ElementsAre(2, 3, 4));
  EXPECT_THAT(StepsOf(reports), ::testing::ElementsAre(2, 3, 4));
  EXPECT_FALSE(reports.front().has_script_checkpoint());

  // The same checkpoint answers a later request; an older one changes nothing.
  Save(buffer, 4, /*save_request=*/1);
  Save(buffer, 3);
  reports = buffer.TakeUnsent(kStart + absl::Seconds(2));
  EXPECT_EQ(reports.back().script_checkpoint().step(), 4);

  buffer.Rewind();
  EXPECT_THAT(CheckpointsOf(buffer.TakeUnsent(kStart + absl::Seconds(3))), ::testing::ElementsAre(1, 2, 3, 4, 4));
}

TEST(ReportBuffer, StoresTheNewestTwentyCheckpoints) {
  ReportBuffer buffer;
  for (uint64_t step = 1; step <= 30; ++step) Save(buffer, step);

  const std::vector<uint64_t> sent = CheckpointsOf(buffer.TakeUnsent(kStart));

  ASSERT_THAT(sent, SizeIs(20));
  EXPECT_EQ(sent.front(), 11);
  EXPECT_EQ(sent.back(), 30);
}

TEST(ReportBuffer, NewStream_SendsAllStoredReportsInMessagesOfLimitedSize) {
  ReportBuffer buffer;
  for (uint64_t step = 1; step <= 1000; ++step) buffer.Add(Steps(step, step), kStart);
  buffer.TakeUnsent(kStart);

  buffer.Rewind();
  std::vector<v1::RankReport> again = buffer.TakeUnsent(kStart);

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
  std::vector<v1::RankReport> reports = buffer.TakeUnsent(kStart);

  EXPECT_EQ(StepsOf(reports).front(), 11);
  EXPECT_EQ(StepsOf(reports).back(), total);
  EXPECT_EQ(reports.front().dropped_steps(), 10);
  EXPECT_EQ(reports.back().dropped_steps(), 0);
}

TEST(ReportBuffer, StepsThatWereSentBeforeRemoval_CountAsReportedNotAsDropped) {
  ReportBuffer buffer;
  for (uint64_t step = 1; step <= limits::kDaemonReports; ++step) buffer.Add(Steps(step, step), kStart);
  buffer.TakeUnsent(kStart);

  buffer.Add(Steps(5000, 5000), kStart);

  EXPECT_EQ(buffer.TakeUnsent(kStart + absl::Seconds(1)).back().dropped_steps(), 0);
}

TEST(ReportBuffer, StepsDroppedByTheTrainer_AreReportedOnce) {
  ReportBuffer buffer;
  std::vector<uint64_t> reported;
  v1::RankReport report;
  for (uint64_t dropped : {3, 3, 5}) {
    report.set_dropped_steps(dropped);
    buffer.Add(report, kStart);
    reported.push_back(buffer.TakeUnsent(kStart).back().dropped_steps());
  }

  EXPECT_THAT(reported, ::testing::ElementsAre(3, 0, 2));
}

TEST(ReportBuffer, StepReportedTwice_IsStoredOnce) {
  ReportBuffer buffer;
  buffer.Add(Steps(1, 5), kStart);

  buffer.Add(Steps(3, 7), kStart);

  EXPECT_THAT(StepsOf(buffer.TakeUnsent(kStart)), ::testing::ElementsAre(1, 2, 3, 4, 5, 6, 7));
}

TEST(ReportBuffer, Evaluation_FollowsItsStep) {
  ReportBuffer buffer;
  for (uint64_t step = 1; step <= 300; ++step) {
    v1::RankReport report = Steps(step, step);
    if (step % 100 == 0) report.add_evals()->set_step(step);
    buffer.Add(report, kStart);
  }

  std::vector<v1::RankReport> reports = buffer.TakeUnsent(kStart);

  ASSERT_THAT(reports, SizeIs(2));
  EXPECT_EQ(reports[0].evals_size(), 2);
  EXPECT_EQ(reports[1].evals(0).step(), 300);
}

// A report of a rank that is in `phase`, and whose phase `ended` took `seconds`.
v1::RankReport Phase(const std::string& phase, const std::string& ended, double seconds) {
  v1::RankReport report;
  report.set_phase(phase);
  report.add_phase_times()->set_phase(ended);
  report.mutable_phase_times(0)->set_longest_s(seconds);
  return report;
}

TEST(ReportBuffer, PhaseTimes_SurviveThinningAndAreReportedOnce) {
  ReportBuffer buffer;
  buffer.Add(Phase("train", "first_step", 0.5), kStart);
  buffer.TakeUnsent(kStart);

  buffer.Add(Phase("train", "save", 9), kStart + absl::Milliseconds(10));
  buffer.Add(Phase("train", "train", 0.3), kStart + absl::Milliseconds(20));
  buffer.Add(Phase("train", "train", 0.2), kStart + absl::Milliseconds(30));

  std::vector<v1::RankReport> reports = buffer.TakeUnsent(kStart + absl::Milliseconds(500));
  ASSERT_THAT(reports, SizeIs(1));
  std::map<std::string, double> times;
  for (const v1::PhaseTime& time : reports[0].phase_times()) times[time.phase()] = time.longest_s();
  EXPECT_EQ(times, (std::map<std::string, double>{{"save", 9}, {"train", 0.3}}));

  buffer.RepeatLast(v1::TrainerKey(), /*silent=*/true, kStart + absl::Seconds(2));
  EXPECT_EQ(buffer.TakeUnsent(kStart + absl::Seconds(2)).at(0).phase_times_size(), 0);
}

TEST(ReportBuffer, RepeatLast_SendsTheLastReportWithItsAgeAndThePresentProcessState) {
  ReportBuffer buffer;
  v1::RankReport report;
  report.set_phase("train");
  report.set_last_step(7);
  buffer.Add(report, kStart);
  buffer.TakeUnsent(kStart);

  buffer.SetProcess("T", 1.25);
  buffer.RepeatLast(v1::TrainerKey(), /*silent=*/true, kStart + absl::Seconds(4));

  v1::RankReport reported = buffer.TakeUnsent(kStart + absl::Seconds(4)).at(0);
  EXPECT_TRUE(reported.silent());
  EXPECT_EQ(reported.process_state(), "T");
  EXPECT_EQ(reported.cpu_total_s(), 1.25);
  EXPECT_EQ(reported.last_step(), 7u);
  EXPECT_DOUBLE_EQ(reported.age_s(), 4);

  buffer.Add(report, kStart + absl::Seconds(5));
  EXPECT_FALSE(buffer.TakeUnsent(kStart + absl::Seconds(5)).at(0).silent());
}

}  // namespace
}  // namespace trainyard::agent
