// The core and its outbox: facts wait for the disk, outlive the daemon, and are reported once even if a process is
// killed.
#include "common/limits.h"
#include "tests/unit/agent/core_driver.h"
#include "worker/agent/core.h"

namespace trainyard::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Returns the content of the outbox file of an incarnation to which rank 0 has reported the save of step 100; the rank
// is still running. `acked`: whether the coordinator has acknowledged the fact.
std::string DiskOfEarlierIncarnation(bool acked) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {Desired(Rank(0))}));
  driver.Handle(ProcessStarted{Rank(0), 4242});
  driver.Handle(driver.Open(kLink1, Rank(0)));
  driver.Handle(driver.Saved(kLink1, 1, 100));
  if (acked) {
    driver.Handle(FactsAcknowledged{2});
    driver.Handle(driver.Saved(kLink1, 2, 200));  // the write of this fact also stores the acknowledgement
  }
  return driver.disk();
}

void AdoptRank0(CoreDriver& driver) {
  driver.Handle(ProcessFound{.id = Rank(0), .token = "old", .pid = 4242});
  driver.Handle(driver.Open(kLink1, Rank(0), /*reconnect=*/true));
}

TEST_F(RunningTrainerTest, FactThatIsNotOnDisk_IsNotSentAndDelaysTheRevision) {
  driver_.disk_is_held = true;
  driver_.Handle(driver_.Saved(kLink1, 1, 100));
  driver_.Handle(driver_.State(2, {Desired(Rank(0))}));
  driver_.Run(absl::Seconds(1));
  EXPECT_THAT(driver_.LastFacts(), IsEmpty());
  EXPECT_EQ(driver_.All<SendToCoordinator>().back().message.heartbeat().applied_revision(), 1);

  driver_.CompleteWrite();

  ASSERT_THAT(driver_.LastFacts(), SizeIs(1));
  EXPECT_EQ(driver_.LastFacts()[0].saved().step(), 100);
  driver_.Run(absl::Seconds(1));
  EXPECT_EQ(driver_.All<SendToCoordinator>().back().message.heartbeat().applied_revision(), 2)
      << "the next heartbeat reports the revision";
}

TEST(AgentOutbox, FactsOfAnEarlierIncarnation_AreSentUnderTheSameNumbers) {
  CoreDriver driver("c1", DiskOfEarlierIncarnation(/*acked=*/false));

  driver.Attach();

  EXPECT_EQ(driver.All<Dial>()[0].hello.outbox_id(), "outbox-1");
  ASSERT_THAT(driver.AllFacts(), SizeIs(2));
  EXPECT_EQ(driver.AllFacts()[1].saved().step(), 100);
  EXPECT_EQ(driver.AllFacts()[1].sequence(), 2);
}

TEST(AgentOutbox, FactReportedAgainToTheNextIncarnation_IsNotAddedAgain) {
  CoreDriver driver("c1", DiskOfEarlierIncarnation(/*acked=*/false));
  AdoptRank0(driver);
  driver.Attach();
  driver.ForgetEffects();

  driver.Handle(driver.Saved(kLink1, 1, 100));
  EXPECT_THAT(driver.LastFacts(), IsEmpty());
  driver.Handle(driver.Saved(kLink1, 2, 200));

  EXPECT_EQ(driver.LastFacts().at(0).saved().step(), 200);
}

TEST(AgentOutbox, FactThatWasDurableBeforeTheDaemonWasKilled_IsAcknowledgedByTheNextIncarnation) {
  CoreDriver driver("c1", DiskOfEarlierIncarnation(/*acked=*/true));
  AdoptRank0(driver);

  // The acknowledgement was lost with the daemon; the trainer reports the fact again.
  ASSERT_THAT(driver.Last<SendLinkMessage>(), SizeIs(1));
  EXPECT_EQ(driver.Last<SendLinkMessage>()[0].message.ack().sequence(), 1);
  driver.Handle(driver.Saved(kLink1, 1, 100));

  EXPECT_EQ(driver.Last<SendLinkMessage>().at(0).message.ack().sequence(), 1);
}

// A mark in the outbox file is the number of a trainer's newest fact that the coordinator has acknowledged.
TEST(AgentOutbox, MarksOfTrainersThatNoLongerExist_AreForgotten) {
  CoreDriver driver("c1", DiskOfEarlierIncarnation(/*acked=*/true));
  driver.Attach();
  driver.Handle(FactsAcknowledged{3});
  driver.Handle(driver.State(1, {Desired(Rank(1))}));
  driver.Handle(ProcessStarted{Rank(1), 7});

  CoreDriver next("c1", driver.disk());
  next.Handle(AllFound{});

  EXPECT_EQ(ReadOutboxFile(next.disk())->header.marks_size(), 0);
}

TEST(AgentOutbox, AcknowledgementToTheNextIncarnation_ReachesTheAdoptedTrainer) {
  CoreDriver driver("c1", DiskOfEarlierIncarnation(/*acked=*/false));
  AdoptRank0(driver);
  driver.Attach();

  driver.Handle(FactsAcknowledged{2});

  ASSERT_THAT(driver.Last<SendLinkMessage>(), SizeIs(1));
  EXPECT_EQ(driver.Last<SendLinkMessage>()[0].message.ack().sequence(), 1);
}

TEST(AgentOutbox, ExitInTheOutboxOfAnEarlierIncarnation_IsReportedOnce) {
  CoreDriver earlier;
  earlier.Attach();
  earlier.Handle(earlier.State(1, {Desired(Rank(0))}));
  earlier.Handle(ProcessStarted{Rank(0), 9});
  earlier.Handle(earlier.Ended(Rank(0), 4));
  CoreDriver driver("c1", earlier.disk());
  driver.Handle(ProcessFound{.id = Rank(0), .token = "old", .pid = 9});
  driver.Handle(driver.Ended(Rank(0), 4));

  driver.Attach();
  driver.Handle(FactsAcknowledged{2});

  int exits = 0;
  for (const v1::Fact& fact : driver.AllFacts()) exits += fact.has_exited() ? 1 : 0;
  EXPECT_EQ(exits, 1);
  EXPECT_THAT(driver.Last<MarkReported>(), SizeIs(1));
}

TEST_F(RunningTrainerTest, FullDisk_IsLoggedOnceAndFactsContinueUnderANewId) {
  driver_.disk_error = absl::ResourceExhaustedError("no space left on device");
  driver_.Handle(driver_.Saved(kLink1, 1, 100));
  EXPECT_EQ(driver_.core().stats().outbox_errors, 1);
  EXPECT_FALSE(driver_.core().stats().outbox_on_disk);
  ASSERT_THAT(driver_.Last<Log>(), SizeIs(1));
  EXPECT_THAT(driver_.Last<Log>()[0].text, HasSubstr("no space left"));
  ASSERT_THAT(driver_.Last<HangUp>(), SizeIs(1));
  driver_.Handle(SessionEnded{absl::UnavailableError("hung up")});
  driver_.Run(absl::Seconds(1));
  EXPECT_EQ(driver_.All<Dial>().back().hello.outbox_id(), "outbox-2");

  driver_.Handle(driver_.Welcome());
  EXPECT_EQ(driver_.LastFacts().back().saved().step(), 100);
  driver_.ForgetEffects();
  driver_.Run(absl::Seconds(30));
  EXPECT_THAT(driver_.All<HangUp>(), IsEmpty());
  EXPECT_THAT(driver_.All<Log>(), IsEmpty()) << "a write that is retried and refused again is not logged";
  EXPECT_GT(driver_.core().stats().outbox_errors, 2);
  driver_.disk_error = absl::OkStatus();
  driver_.Run(absl::Seconds(10));

  EXPECT_TRUE(driver_.core().stats().outbox_on_disk);
  EXPECT_EQ(ReadOutboxFile(driver_.disk())->header.outbox_id(), "outbox-2");
}

TEST_F(RunningTrainerTest, HangingDisk_IsLoggedAndDelaysNoFactForLong_AndEverythingIsWrittenAgainWhenItAnswers) {
  driver_.disk_is_held = true;
  driver_.Handle(driver_.Saved(kLink1, 1, 100));
  driver_.ForgetEffects();
  driver_.Run(absl::Seconds(9));
  EXPECT_FALSE(driver_.core().stats().outbox_hangs);
  driver_.Run(absl::Seconds(2));

  EXPECT_TRUE(driver_.core().stats().outbox_hangs);
  EXPECT_FALSE(driver_.core().stats().outbox_on_disk);
  ASSERT_THAT(driver_.All<HangUp>(), SizeIs(1));
  ASSERT_THAT(driver_.All<Log>(), SizeIs(1));
  EXPECT_THAT(driver_.All<Log>()[0].text, HasSubstr("has not answered for 10s: facts are kept in memory"));
  driver_.Handle(SessionEnded{absl::UnavailableError("hung up")});
  driver_.Run(absl::Seconds(1));
  driver_.Handle(driver_.Welcome());
  ASSERT_FALSE(driver_.AllFacts().empty());
  EXPECT_EQ(driver_.AllFacts().back().saved().step(), 100);
  EXPECT_THAT(driver_.All<StoreFacts>(), IsEmpty()) << "no second write while one hangs";

  driver_.disk_is_held = false;
  driver_.CompleteWrite();
  driver_.Run(absl::Seconds(1));

  EXPECT_FALSE(driver_.core().stats().outbox_hangs);
  EXPECT_TRUE(driver_.core().stats().outbox_on_disk);
  EXPECT_EQ(ReadOutboxFile(driver_.disk())->header.outbox_id(), driver_.All<Dial>().back().hello.outbox_id());
}

TEST(AgentOutbox, CoordinatorOfAnotherCluster_ReceivesNoFacts) {
  CoreDriver driver("c1", DiskOfEarlierIncarnation(/*acked=*/false));

  driver.Attach(/*acked_fact=*/0, "c2");

  EXPECT_THAT(driver.AllFacts(), IsEmpty());
  EXPECT_EQ(driver.core().stats().facts_dropped, 2);
  EXPECT_THAT(driver.All<Log>().at(1).text, HasSubstr("2 facts of cluster c1 are dropped"));
}

TEST(AgentOutbox, TrainerThatHasEnded_IsNamedAsEnded_AndAnotherClusterReceivesItsExitAlone) {
  CoreDriver driver("c1", DiskOfEarlierIncarnation(/*acked=*/false));
  driver.Handle(ProcessFound{.id = Rank(0), .token = "old", .pid = 4242});
  driver.Handle(driver.Ended(Rank(0), 4));

  driver.Attach(/*acked_fact=*/0, "c2");

  const v1::Hello hello = driver.All<Dial>().at(0).hello;
  ASSERT_EQ(hello.trainers_size(), 1);
  EXPECT_TRUE(hello.trainers(0).ended());
  ASSERT_THAT(driver.AllFacts(), SizeIs(1));
  EXPECT_TRUE(driver.AllFacts()[0].has_exited());
}

TEST(AgentOutbox, TrainersOfAnotherCluster_AreEndedOnlyWithAdoptCluster) {
  CoreDriver waiting("c1", DiskOfEarlierIncarnation(/*acked=*/false));
  waiting.Handle(ProcessFound{.id = Rank(0), .token = "old", .pid = 4242});
  waiting.Handle(AllFound{});
  EXPECT_EQ(waiting.All<Dial>()[0].hello.cluster_id(), "c1");  // coordinators of other clusters refuse it
  EXPECT_FALSE(waiting.All<Dial>()[0].hello.trainers(0).ended());
  waiting.Handle(SessionEnded{absl::UnavailableError("host h1 runs 1 trainers of cluster c1")});
  waiting.Run(absl::Minutes(1));
  EXPECT_THAT(waiting.All<SignalProcess>(), IsEmpty());

  CoreDriver adopting("c1", DiskOfEarlierIncarnation(/*acked=*/false), /*adopt_cluster=*/true);
  adopting.Handle(ProcessFound{.id = Rank(0), .token = "old", .pid = 4242});
  adopting.Attach(/*acked_fact=*/0, "c2");
  EXPECT_EQ(adopting.All<Dial>()[0].hello.cluster_id(), "");
  EXPECT_EQ(adopting.All<Dial>()[0].hello.trainers_size(), 1);  // the trainer is named until its exit is reported
  adopting.Handle(adopting.State(1, {}));
  EXPECT_THAT(adopting.Last<SignalProcess>(), SizeIs(1));
  adopting.Handle(adopting.Killed(Rank(0)));

  EXPECT_TRUE(adopting.LastFacts().at(0).has_exited());
}

TEST(AgentOutbox, Welcome_WithAnUnsupportedProtocol_MakesTheDaemonLeave) {
  CoreDriver driver;
  driver.Handle(AllFound{});
  EXPECT_EQ(driver.All<Dial>()[0].hello.oldest_protocol(), limits::kOldestProtocol);
  Welcomed welcomed = driver.Welcome();
  welcomed.welcome.set_protocol(limits::kProtocol + 1);

  driver.Handle(welcomed);

  EXPECT_EQ(driver.Last<Leave>().at(0).exit_code, 1);
}

TEST_F(RunningTrainerTest, DaemonThatStopsItsTrainers_ReportsImmediatelyThatItIsDraining) {
  driver_.Handle(LeaveRequested{Leaving::kStopTrainers});

  ASSERT_THAT(driver_.Last<SendToCoordinator>(), SizeIs(1));
  EXPECT_TRUE(driver_.Last<SendToCoordinator>()[0].message.heartbeat().draining());
}

}  // namespace
}  // namespace trainyard::agent
