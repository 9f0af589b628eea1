// Histories, commits, and the queue of events for the core: their limits, and what is dropped first.
#include "coordinator/core/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/commits.h"
#include "coordinator/core/event_queue.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

EventPtr NoticeOf(uint64_t sequence) {
  auto event = std::make_shared<v1::Event>();
  event->set_sequence(sequence);
  event->mutable_notice()->set_text(absl::StrCat("notice ", sequence));
  return event;
}

EventPtr WarningOf(uint64_t sequence) {
  auto event = std::make_shared<v1::Event>(*NoticeOf(sequence));
  event->mutable_notice()->set_level("warning");
  return event;
}

EventPtr StepOf(uint64_t sequence, uint64_t step) {
  auto event = std::make_shared<v1::Event>();
  event->set_sequence(sequence);
  event->mutable_step()->set_step(step);
  return event;
}

// A new reason of an unchanged state.
EventPtr ReasonOf(uint64_t sequence) {
  auto event = std::make_shared<v1::Event>();
  event->set_sequence(sequence);
  event->mutable_state()->set_state(v1::JOB_STATE_QUEUED);
  event->mutable_state()->set_reason(absl::StrCat("reason ", sequence));
  return event;
}

std::vector<uint64_t> SequencesOf(const std::vector<EventPtr>& events) {
  std::vector<uint64_t> sequences;
  for (const EventPtr& event : events) sequences.push_back(event->sequence());
  return sequences;
}

TEST(History, DurableEventsAndReports_AreSentInSequenceOrder_InBatches) {
  History history;
  history.AddDurable(NoticeOf(1));
  history.AddReport(StepOf(2, 1));
  history.AddReport(StepOf(3, 2));
  history.AddDurable(NoticeOf(4));
  WatchPosition position;

  std::vector<EventPtr> first;
  EXPECT_FALSE(history.Next(position, 3, first)) << "more events follow";
  std::vector<EventPtr> rest;
  EXPECT_TRUE(history.Next(position, 3, rest));

  EXPECT_THAT(SequencesOf(first), ElementsAre(1, 2, 3));
  EXPECT_THAT(SequencesOf(rest), ElementsAre(4));
}

TEST(History, StepsThatAWatcherHasSeen_AreNotRepeated) {
  History history;
  for (uint64_t step = 1; step <= 5; ++step) history.AddReport(StepOf(100 + step, step));
  WatchPosition position{.sequence = 40, .step = 3, .eval_step = 0};

  std::vector<EventPtr> events;
  EXPECT_TRUE(history.Next(position, 100, events));

  EXPECT_THAT(SequencesOf(events), ElementsAre(104, 105));
  EXPECT_EQ(position.sequence, 105u);
}

TEST(History, OverItsLimit_KeepsTheFirstAndTheNewest) {
  History history({.durable = 5, .first = 2, .reports = 3});
  std::vector<uint64_t> dropped;
  for (uint64_t sequence = 1; sequence <= 8; ++sequence) {
    for (uint64_t old : history.AddDurable(NoticeOf(sequence))) dropped.push_back(old);
  }

  EXPECT_THAT(dropped, ElementsAre(3, 4, 5));
  EXPECT_THAT(SequencesOf({history.durable().begin(), history.durable().end()}), ElementsAre(1, 2, 6, 7, 8));
  size_t bytes = 0;
  for (const EventPtr& event : history.durable()) bytes += event->ByteSizeLong();
  EXPECT_EQ(history.durable_bytes(), bytes);
  EXPECT_THAT(history.Shrink(bytes, 1, History::Dropped::kAny), ElementsAre(6, 7, 1, 2))
      << "the first events are dropped last";

  size_t reports_dropped = 0;
  for (uint64_t step = 1; step <= 5; ++step) reports_dropped += history.AddReport(StepOf(10 + step, step));
  EXPECT_EQ(reports_dropped, 2u);
}

TEST(History, RepeatedEvents_AreDroppedBeforeDecisions) {
  History history({.durable = 4, .first = 1, .reports = 3});
  auto saved = std::make_shared<v1::Event>();
  saved->set_sequence(4);
  saved->mutable_checkpoint()->set_step(10);
  history.AddDurable(WarningOf(1));
  history.AddDurable(WarningOf(2));
  history.AddDurable(WarningOf(3));
  history.AddDurable(std::move(saved));

  EXPECT_THAT(history.AddDurable(WarningOf(5)), ElementsAre(4));
  EXPECT_THAT(history.Shrink(1, 0, History::Dropped::kRepetitive), IsEmpty());
  EXPECT_THAT(history.AddDurable(WarningOf(6)), ElementsAre(2))
      << "no event is repetitive: the oldest one after the first is dropped";
}

TEST(History, ReasonsThatFollowOneAnother_AreKeptOnlyIfTheyAreTheNewest) {
  History history({.durable = 5, .first = 2, .reports = 100, .reasons = 2});
  uint64_t dropped = 0;
  for (uint64_t sequence = 1; sequence <= 4; ++sequence) dropped += history.AddReport(ReasonOf(sequence));
  history.AddReport(StepOf(5, 1));
  for (uint64_t sequence = 6; sequence <= 9; ++sequence) dropped += history.AddReport(ReasonOf(sequence));

  EXPECT_THAT(SequencesOf({history.reports().begin(), history.reports().end()}), ElementsAre(3, 4, 5, 8, 9));
  EXPECT_EQ(dropped, 0u) << "a reason that a newer one has replaced is not counted as lost";
  WatchPosition position{.sequence = 6};
  std::vector<EventPtr> events;
  EXPECT_TRUE(history.Next(position, 100, events));
  EXPECT_THAT(SequencesOf(events), ElementsAre(8, 9));

  history.DropReports();
  for (uint64_t sequence = 10; sequence <= 12; ++sequence) history.AddReport(ReasonOf(sequence));
  EXPECT_THAT(SequencesOf({history.reports().begin(), history.reports().end()}), ElementsAre(11, 12));
}

TEST(History, CutText_NeverSplitsACharacter) {
  EXPECT_EQ(CutText("short", 5), "short");
  EXPECT_EQ(CutText("longer text", 8), "longe...");
  EXPECT_EQ(CutText("ab\xc3\xa4\xc3\xa4zz", 6), "ab...") << "a character of two bytes is kept or removed as a whole";
}

std::vector<std::string> KeysOf(const std::vector<StoreEntry>& commit) {
  std::vector<std::string> keys;
  for (const StoreEntry& entry : commit) keys.push_back(absl::StrCat(entry.key, "=", entry.value.value_or("-")));
  return keys;
}

TEST(Commits, HoldWholeTurns_AndTheLastEntryPerKey) {
  auto commits = MakeCommits({{{"a", "1"}, {"b", "1"}}, {{"a", "2"}}, {{"c", "1"}, {"d", std::nullopt}}}, 3);

  ASSERT_EQ(commits.size(), 2u);
  EXPECT_THAT(KeysOf(commits[0]), ElementsAre("a=2", "b=1"));
  EXPECT_THAT(KeysOf(commits[1]), ElementsAre("c=1", "d=-"));
  EXPECT_THAT(MakeCommits({}, 3), IsEmpty());
}

TEST(Commits, TurnTooLargeForACommit_IsSplitBetweenItsGroups) {
  std::vector<Record> turn = {{"rank/x", "1"},       {"event/x/1", "1", 1}, {"job/x", "1", 1},
                              {"event/y/1", "1", 2}, {"job/y", "1", 2},     {"host/h", "1"}};

  auto commits = MakeCommits({{{"before", "1"}}, turn}, 4);

  ASSERT_EQ(commits.size(), 3u);
  EXPECT_THAT(KeysOf(commits[0]), ElementsAre("before=1"));
  EXPECT_THAT(KeysOf(commits[1]), ElementsAre("rank/x=1", "event/x/1=1", "job/x=1"));
  EXPECT_THAT(KeysOf(commits[2]), ElementsAre("event/y/1=1", "job/y=1", "host/h=1"));
}

TEST(Commits, GroupTooLargeForACommit_IsWrittenInOrder) {
  std::vector<Record> turn;
  for (int i = 0; i < 5; ++i) turn.push_back({absl::StrCat("event/x/", i), "1", 1});
  turn.push_back({"job/x", "1", 1});

  auto commits = MakeCommits({turn}, 4);

  ASSERT_EQ(commits.size(), 2u);
  EXPECT_EQ(commits[0].size(), 4u);
  EXPECT_THAT(KeysOf(commits[1]), ElementsAre("event/x/4=1", "job/x=1"))
      << "the record of the job, which makes the events valid, comes last";
}

RankReportsReceived ReportsOf(uint32_t rank, int steps) {
  RankReportsReceived received;
  for (int i = 0; i < 10; ++i) {
    v1::RankReport& report = *received.reports.add_reports();
    report.mutable_key()->set_rank(rank);
    for (int step = 0; rank == 0 && step < steps; ++step) report.add_steps()->set_step(step + 1);
  }
  return received;
}

TEST(EventQueue, FloodOfReports_IsDroppedAndCounted_ExceptStepsOfRankZero) {
  EventQueue queue(1'000, /*report_bytes=*/4'000);
  uint64_t posted = 0;
  while (queue.Post(ReportsOf(1, 0)) && posted < 10'000) ++posted;
  EXPECT_EQ(posted, 10'000u) << "the sender of a dropped report need not wait";
  EXPECT_LT(queue.size(), 200u);
  EXPECT_EQ(queue.TakeDroppedReports(), (10'001u - queue.size()) * 10) << "every dropped report is counted";
  EXPECT_EQ(queue.TakeDroppedReports(), 0u);

  // Rank 0's steps are accepted until the queue makes their sender wait.
  uint64_t kept = 0;
  while (queue.Post(ReportsOf(0, 20))) ++kept;
  EXPECT_GT(kept, 0u);
  bool resumed = false;
  queue.WhenDrained([&] { resumed = true; });
  EXPECT_FALSE(resumed);
  EXPECT_EQ(queue.TakeDroppedReports(), 0u);

  uint64_t of_rank_zero = 0;
  while (queue.size() > 0) {
    for (const Event& event : queue.Take(absl::ZeroDuration(), 100)) {
      of_rank_zero += std::get<RankReportsReceived>(event).reports.reports(0).key().rank() == 0 ? 1 : 0;
    }
  }
  EXPECT_EQ(of_rank_zero, kept + 1);
  EXPECT_TRUE(resumed);
}

TEST(EventQueue, FloodOfFacts_LosesNoFact_ButPausesItsSenders) {
  EventQueue queue(1'000, /*report_bytes=*/4'000, /*fact_bytes=*/10'000);
  HostFactsReceived received{SessionId(1), {}};
  received.batch.add_facts()->mutable_refused()->set_message(std::string(3'000, 'x'));
  int accepted = 0;
  while (queue.Post(received)) ++accepted;
  bool resumed = false;
  queue.WhenDrained([&] { resumed = true; });

  EXPECT_EQ(accepted, 3);
  EXPECT_FALSE(resumed);
  EXPECT_EQ(queue.Take(absl::ZeroDuration(), 1).size(), 1u);
  EXPECT_FALSE(resumed) << "more than half of the bytes still wait";
  std::vector<Event> rest = queue.Take(absl::ZeroDuration(), 1'000);
  EXPECT_EQ(rest.size(), 3u) << "including the event that exceeded the limit";
  EXPECT_GT(QueuedBytes(rest.front()), 3'000u);
  EXPECT_TRUE(resumed);
}

TEST(EventQueue, CrowdedQueue_AcceptsFacts_AndRefusesCallsOnlyWhenFull) {
  EventQueue queue(10);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(queue.Post(DetachHost{SessionId(1)}));

  EXPECT_TRUE(queue.Post(ReportsOf(3, 0))) << "the sender of a dropped report need not wait";
  EXPECT_EQ(queue.size(), 5u);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(queue.TryPost(GetServerInfo{CallId(1)}));
  EXPECT_FALSE(queue.TryPost(GetServerInfo{CallId(1)}));
  EXPECT_FALSE(queue.Post(HostFactsReceived{SessionId(1), {}})) << "accepted, but its sender must wait";
  EXPECT_EQ(queue.size(), 11u);
}

}  // namespace
}  // namespace trainyard
