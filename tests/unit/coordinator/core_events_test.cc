// Durable events and their readers across a crash of the coordinator, with the production core on a manual clock and a
// store that is written commit by commit.
#include <gmock/gmock.h>

#include <functional>

#include "absl/strings/match.h"
#include "coordinator/core/records.h"
#include "tests/unit/coordinator/events_harness.h"
#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::vector<uint64_t> StepsOf(const std::vector<EventPtr>& events) {
  std::vector<uint64_t> steps;
  for (const EventPtr& event : events) {
    if (event->has_step()) steps.push_back(event->step().step());
  }
  return steps;
}

std::vector<uint64_t> OneTo(uint64_t last) {
  std::vector<uint64_t> steps;
  for (uint64_t step = 1; step <= last; ++step) steps.push_back(step);
  return steps;
}

TEST(CoreEvents, PublishedEvents_AreSentByTheNextCoordinator_WithTheSameSequenceNumbers) {
  OneHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Save(Key(kJob, 1, 0), 4);
  std::vector<EventPtr> before = one.harness.WatchFrom(kJob, 0);
  ASSERT_GT(before.size(), 3u);

  one.RestartCoordinator();

  std::vector<EventPtr> after = one.harness.WatchFrom(kJob, 0);
  ASSERT_GE(after.size(), before.size());
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(after[i]->SerializeAsString(), before[i]->SerializeAsString()) << before[i]->ShortDebugString();
  }
  // The only new event is the coordinator's restart.
  ASSERT_EQ(after.size(), before.size() + 1);
  EXPECT_EQ(after.back()->notice().rule(), "adoption");
}

TEST(CoreEvents, ReconnectedWatcher_GetsEveryStepOnce_AndInOrder) {
  OneHost one;
  one.host.resends_facts = true;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1, 6);
  WatchPosition seen;
  std::vector<EventPtr> published = one.harness.WatchFrom(kJob, 0);
  for (const EventPtr& event : published) seen.sequence = event->sequence();
  seen.step = 4;  // 5 and 6 were on their way when the coordinator crashed

  one.RestartCoordinator();
  one.host.Attach();
  one.host.Report(Key(kJob, 1, 0), 7, 8);

  EXPECT_THAT(StepsOf(one.harness.WatchFrom(kJob, seen)), ElementsAre(5, 6, 7, 8));
  EXPECT_EQ(StepsOf(one.harness.WatchFrom(kJob, 0)), OneTo(8))
      << "including the steps that were published before the restart";
  EXPECT_EQ(one.harness.Get(kJob).last_step(), 8u);
}

TEST(CoreEvents, WatcherThatWaitsWhileStepsAreRepeated_GetsOnlyNewOnes) {
  OneHost one(1);
  one.host.resends_facts = true;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1, 6);
  one.RestartCoordinator();
  uint64_t last = one.harness.WatchFrom(kJob, 0).back()->sequence();
  one.harness.Handle(WatchJob{WatchId(7), JobId(kJob), {.sequence = last, .step = 6}, true});
  ASSERT_FALSE(one.harness.watched.contains(WatchId(7)));

  one.host.Attach();
  for (const EventPtr& event : one.harness.watched[WatchId(7)].events) EXPECT_FALSE(event->has_step());
  one.host.Report(Key(kJob, 1, 0), 7, 7);

  EXPECT_THAT(StepsOf(one.harness.WatchFrom(kJob, WatchPosition{.sequence = last, .step = 6})), ElementsAre(7));
}

TEST(CoreEvents, StepsOfAnEndedRank_SurviveACoordinatorRestart) {
  OneHost one(1);
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1, 10);
  one.host.Finish(Key(kJob, 1, 0), 10);
  ASSERT_EQ(one.harness.StateOf(kJob), v1::JOB_STATE_SUCCEEDED);

  one.RestartCoordinator();  // no daemon repeats the steps, because the trainer has ended

  std::vector<EventPtr> events = one.harness.WatchFrom(kJob, 0);
  EXPECT_EQ(StepsOf(events), OneTo(10));
  EXPECT_EQ(events.back()->state().state(), v1::JOB_STATE_SUCCEEDED) << "the end must come last";
  EXPECT_THAT(StepsOf(one.harness.WatchFrom(kJob, WatchPosition{.sequence = 0, .step = 8})), ElementsAre(9, 10));
}

TEST(CoreEvents, EndOfRankZero_IsAcknowledgedWithItsNewestReports_OrAfterAShortWait) {
  OneHost one(1);
  one.host.resends_facts = true;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1, 8);
  one.host.Save(Key(kJob, 1, 0), 10);
  uint64_t before = one.harness.acks[one.host.session];
  one.host.FinishOnly(Key(kJob, 1, 0), 10);
  EXPECT_EQ(one.harness.acks[one.host.session], before) << "only the daemon has steps 9 and 10";

  one.host.Report(Key(kJob, 1, 0), 9, 10);
  EXPECT_EQ(one.harness.acks[one.host.session], one.host.sequence);
  one.RestartCoordinator();
  EXPECT_EQ(StepsOf(one.harness.WatchFrom(kJob, 0)), OneTo(10));

  OneHost other(1);
  BringToRunning(other.harness, other.host, kJob);
  other.host.Finish(Key(kJob, 1, 0), 10);
  EXPECT_LT(other.harness.acks[other.host.session], other.host.sequence);
  other.harness.Advance(absl::Milliseconds(1'200));
  EXPECT_EQ(other.harness.acks[other.host.session], other.host.sequence)
      << "lost reports must not block the acknowledgement";
  EXPECT_EQ(other.harness.StateOf(kJob), v1::JOB_STATE_SUCCEEDED);
}

TEST(CoreEvents, Decisions_HaveARule_AndAreListed) {
  OneHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Kill(Key(kJob, 1, 1), 9);

  v1::ListEventsResponse events = ListEventsOf(one.harness, kJob);
  int decisions = 0;
  for (const v1::Event& event : events.events()) decisions += event.notice().rule().empty() ? 0 : 1;
  EXPECT_GT(decisions, 0);
  EXPECT_THAT(TextsOf(events), Contains(HasSubstr("rank 1 on w1 was killed by signal 9")));

  one.RestartCoordinator();
  EXPECT_THAT(TextsOf(ListEventsOf(one.harness, kJob)), Contains(HasSubstr("rank 1 on w1 was killed by signal 9")));
  EXPECT_THAT(ListEventsOf(one.harness, kJob, events.events(2).sequence(), 2).events(), SizeIs(2));
  ListEvents unknown{CallId(60'000), {}};
  unknown.request.set_job_id("nosuchjob001");
  one.harness.Handle(unknown);
  EXPECT_TRUE(absl::IsNotFound(one.harness.replies[unknown.call].status));
}

TEST(CoreEvents, ClusterEvents_ReportHostsAndStates_AndSurviveACoordinatorRestart) {
  OneHost one;
  one.host.Disconnect();
  one.harness.Advance(absl::Seconds(20));

  v1::ListEventsResponse before = ListEventsOf(one.harness, "");
  EXPECT_THAT(TextsOf(before), Contains(HasSubstr("started with 0 jobs")));
  EXPECT_THAT(TextsOf(before), Contains(HasSubstr("host w1 attached")));
  EXPECT_THAT(TextsOf(before), Contains(HasSubstr("JOB_STATE_PLACED")));
  EXPECT_THAT(TextsOf(before), Contains(HasSubstr("host w1 is unreachable")));
  for (const v1::Event& event : before.events()) {
    EXPECT_EQ(event.job_id(), event.has_state() ? kJob : "");
    EXPECT_EQ(event.host(), absl::StrContains(event.notice().text(), "host w1") ? "w1" : "");
  }

  one.harness.Restart();
  v1::ListEventsResponse after = ListEventsOf(one.harness, "");
  ASSERT_EQ(after.events_size(), before.events_size() + 1);
  EXPECT_THAT(TextsOf(after).back(), HasSubstr("started with 1 job,"));
  EXPECT_EQ(TextsOf(ListEventsOf(one.harness, "", before.events().rbegin()->sequence())).size(), 1u);
}

TEST(CoreEvents, ForgottenJob_LeavesNothingInTheStore) {
  Harness harness;
  for (int i = 0; i < 30; ++i) {
    harness.Submit(MakeSpec(1), absl::StrCat("job000000", 10 + i));
    harness.Cancel(absl::StrCat("job000000", 10 + i));
  }
  for (const auto& [key, value] : harness.records) EXPECT_THAT(key, Not(HasSubstr("job00000010")));
}

TEST(CoreEvents, OrphanedRecords_AreIgnored_AndAreDeleted) {
  OneHost one;
  uint64_t last = one.harness.WatchFrom(kJob, 0).back()->sequence();
  v1::Event event;
  event.set_sequence(last + 1);
  event.mutable_notice()->set_text("never released");
  one.harness.records[EventKey(JobId(kJob), last + 1)] = event.SerializeAsString();
  one.harness.records[EventKey(JobId("job0000gone"), last + 1)] = event.SerializeAsString();
  one.harness.records["reports/job0000gone/00000000000000000001"] = "";

  one.RestartCoordinator();

  for (const EventPtr& published : one.harness.WatchFrom(kJob, 0))
    EXPECT_NE(published->notice().text(), "never released");
  for (const auto& [key, value] : one.harness.records) EXPECT_THAT(key, Not(HasSubstr("gone")));
}

TEST(CoreEvents, StoreOfAnOlderVersion_WithoutEvents_IsRead) {
  OneHost one;
  std::erase_if(one.harness.records, [](const auto& record) { return record.first.starts_with("event/"); });
  one.RestartCoordinator();

  std::vector<EventPtr> events = one.harness.WatchFrom(kJob, 0);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events[0]->state().state(), v1::JOB_STATE_PLACED);
}

TEST(CoreEvents, FactsOfARestartedDaemon_ContinueTheNumbersOfItsOutbox_AndThoseOfANewOutboxStartAgain) {
  OneHost one(1);
  one.host.outbox_id = "outbox-a";
  one.host.Detach();
  one.host.Attach();
  BringToRunning(one.harness, one.host, kJob);
  uint64_t published = one.host.sequence;

  one.host.Detach();
  one.host.incarnation = 12;  // a restarted daemon with the outbox file of the previous one
  one.host.Attach();
  EXPECT_EQ(one.harness.welcomes[one.host.session].acked_fact(), published);
  one.host.Save(Key(kJob, 1, 0), 4);
  EXPECT_EQ(one.harness.Get(kJob).checkpoints_size(), 1);

  one.host.Detach();
  one.host.outbox_id = "outbox-b";
  one.host.sequence = 0;
  one.host.Attach();
  EXPECT_EQ(one.harness.welcomes[one.host.session].acked_fact(), 0u);
  one.host.Save(Key(kJob, 1, 0), 5);
  EXPECT_EQ(one.harness.Get(kJob).checkpoints_size(), 2);
}

TEST(CoreEvents, ListHosts_ReportsClockDiskAndDraining) {
  OneHost one;
  Tick tick;
  tick.contacts.push_back({.session = one.host.session,
                           .time = one.harness.now,
                           .clock_offset = absl::Milliseconds(250),
                           .disk_free_bytes = 12'345});
  one.harness.Handle(tick);
  one.harness.Handle(HostDraining{one.host.session, true});
  FakeHost away(one.harness, "w0", 3, 22);
  away.Attach();
  away.Detach();
  one.harness.Handle(ListHosts{CallId(70'000)});
  auto hosts = std::get<v1::ListHostsResponse>(one.harness.replies[CallId(70'000)].response);

  ASSERT_EQ(hosts.hosts_size(), 2);
  EXPECT_EQ(hosts.hosts(0).name(), "w0");
  EXPECT_FALSE(hosts.hosts(0).attached());
  EXPECT_EQ(hosts.hosts(0).peer(), "");
  const v1::HostStatus& host = hosts.hosts(1);
  EXPECT_TRUE(host.attached() && host.reachable() && host.draining());
  EXPECT_DOUBLE_EQ(host.clock_offset_s(), 0.25);
  EXPECT_EQ(host.disk_free_bytes(), 12'345u);
  EXPECT_EQ(host.slots(), 2u);
  EXPECT_EQ(host.cores(), 4u);
  EXPECT_EQ(host.incarnation(), 11u);
  EXPECT_THAT(host.jobs(), ElementsAre(kJob));
  EXPECT_THAT(TextsOf(ListEventsOf(one.harness, "")), Contains(HasSubstr("w1: its daemon is about to leave")));
}

TEST(CoreEvents, ReportOfAnImpossibleStep_DoesNotHideStepsReportedAfterIt) {
  OneHost one(1);
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1'000'000, 1'000'001);
  one.host.Report(Key(kJob, 1, 0), 1, 3);

  EXPECT_EQ(StepsOf(one.harness.WatchFrom(kJob, 0)), OneTo(3));
}

TEST(CoreEvents, RepeatedReportOfASave_ChangesNothing_AndALaterGenerationMaySaveEarlierSteps) {
  OneHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Save(Key(kJob, 1, 0), 2);
  one.host.Save(Key(kJob, 1, 0), 4);
  one.host.Save(Key(kJob, 1, 0), 2);
  ASSERT_EQ(one.harness.Get(kJob).checkpoints_size(), 2);

  one.host.Kill(Key(kJob, 1, 1), 9);
  one.host.Apply(/*start=*/false);
  BringToRunning(one.harness, one.host, kJob, 3);
  one.host.Save(Key(kJob, 2, 0), 3);

  ASSERT_EQ(one.harness.Get(kJob).checkpoints_size(), 2);
  EXPECT_EQ(one.harness.Get(kJob).checkpoints(1).step(), 3u);
  EXPECT_EQ(one.harness.Get(kJob).checkpoints(1).generation(), 2u);
}

// ---- a crash at each commit ----------------------------------------------------------------------------------------

// One job over two generations, with a daemon that repeats what was not acknowledged, a client that submits until it is
// answered, and a watcher that reconnects.
class Story {
 public:
  Story(int commits, size_t entries) : host_(harness_, "w1", 2, 11) {
    host_.resends_facts = true;
    host_.outbox_id = "outbox";
    harness_.commit_entries = entries;
    harness_.commits_left = commits;
  }

  // Returns whether the coordinator crashed.
  bool Run() {
    Do([this] { host_.Attach(); });
    Do([this] { submitted_ = harness_.Submit(MakeSpec(2), kJob).status.ok() && !harness_.crashed; });
    while (!submitted_ || harness_.crashed) {
      Recover();
      submitted_ = harness_.Submit(MakeSpec(2), kJob).status.ok();
    }
    Form(1);
    Do([this] { host_.Report(Key(kJob, 1, 0), 1, 5); });
    Do([this] { host_.Save(Key(kJob, 1, 0), 4); });
    Do([this] { host_.Kill(Key(kJob, 1, 1), 9); });
    for (int i = 0; i < 3; ++i) {
      Do([this] { host_.Apply(); });
      Do([this] { harness_.Advance(absl::Seconds(1)); });
    }
    Form(2);
    Do([this] { host_.Report(Key(kJob, 2, 0), 5, 10); });
    Do([this] { host_.Save(Key(kJob, 2, 0), 10); });
    Do([this] { host_.Finish(Key(kJob, 2, 0), 10); });
    Do([this] { host_.Finish(Key(kJob, 2, 1), 10); });
    Do([this] { harness_.Advance(absl::Seconds(2)); });
    return recovered_;
  }

  void Check() {
    v1::Job job = harness_.Get(kJob);
    EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.reason();
    EXPECT_EQ(job.generation(), 2u);
    EXPECT_EQ(job.restarts(), 1u);
    ASSERT_EQ(job.checkpoints_size(), 2);
    EXPECT_EQ(StepsOf(seen_), OneTo(10));
    std::vector<v1::JobState> states;
    int checkpoints = 0;
    for (const EventPtr& event : seen_) {
      if (event->has_state() && (states.empty() || states.back() != event->state().state())) {
        states.push_back(event->state().state());
      }
      checkpoints += event->has_checkpoint() ? 1 : 0;
    }
    EXPECT_THAT(states, ElementsAre(v1::JOB_STATE_QUEUED, v1::JOB_STATE_PLACED, v1::JOB_STATE_STARTING,
                                    v1::JOB_STATE_RUNNING, v1::JOB_STATE_RECOVERING, v1::JOB_STATE_PLACED,
                                    v1::JOB_STATE_STARTING, v1::JOB_STATE_RUNNING, v1::JOB_STATE_SUCCEEDED));
    EXPECT_EQ(checkpoints, 2);
    // A restarted coordinator must know everything that was published.
    host_.Disconnect();
    harness_.Restart();
    std::map<uint64_t, std::string> kept;
    for (const EventPtr& event : harness_.WatchFrom(kJob, 0)) kept[event->sequence()] = event->SerializeAsString();
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    for (const EventPtr& event : seen_) {
      // A restarted coordinator may publish the same state again with another reason, which is not compared.
      bool same_state = event->has_state() && event->state().state() == state;
      if (event->has_state()) state = event->state().state();
      if (event->has_step() || same_state) continue;
      EXPECT_EQ(kept[event->sequence()], event->SerializeAsString()) << event->ShortDebugString();
    }
  }

 private:
  void Do(const std::function<void()>& act) {
    act();
    if (harness_.crashed) Recover();
    Watch();
  }

  void Recover() {
    recovered_ = true;
    host_.Disconnect();
    harness_.Restart();
    EXPECT_TRUE(harness_.core->Check().ok()) << harness_.core->Check();
    EXPECT_TRUE(!submitted_ || !harness_.Get(kJob).job_id().empty()) << "an answered submit was lost";
    host_.Attach();
  }

  void Form(uint64_t generation) {
    Do([this] { host_.Apply(); });
    for (uint32_t rank = 0; rank < 2; ++rank) {
      Do([&] { host_.Register(Key(kJob, generation, rank), harness_.Get(kJob).spec_digest()); });
      Do([&] { host_.Ready(Key(kJob, generation, rank), generation == 1 ? 1 : 5); });
    }
  }

  void Watch() {
    if (!submitted_) return;
    for (EventPtr& event : harness_.WatchFrom(kJob, position_)) {
      position_.sequence = event->sequence();
      if (event->has_step()) position_.step = event->step().step();
      seen_.push_back(std::move(event));
    }
  }

  Harness harness_;
  FakeHost host_;
  bool submitted_ = false;
  bool recovered_ = false;
  WatchPosition position_;
  std::vector<EventPtr> seen_;
};

TEST(CoreCrash, AtAnyCommit_LosesNothingThatWasAcknowledgedOrSent) {
  // A commit of 12 entries has space for any group of records that belong together (commits.h), but not for every turn
  // of this test.
  for (size_t entries : {size_t{12}, Store::kEntriesMax}) {
    int commits = 1;
    for (;; ++commits) {
      SCOPED_TRACE(absl::StrCat("the coordinator crashes with commit ", commits, " of at most ", entries, " entries"));
      Story story(commits, entries);
      bool crashed = story.Run();
      story.Check();
      if (HasFailure()) return;
      if (!crashed) break;
    }
    EXPECT_GT(commits, 20) << "the test makes fewer commits than it should";
  }
}

}  // namespace
}  // namespace trainyard
