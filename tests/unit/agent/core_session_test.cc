// The daemon's core: adopting trainers of an earlier incarnation, the session with the coordinator, leaving, and log
// requests.
#include <signal.h>

#include "common/limits.h"
#include "tests/unit/agent/core_driver.h"
#include "worker/agent/core.h"

namespace trainyard::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- adopting ----

TEST(AgentCore, FoundTrainer_ContinuesUntilTheCoordinatorHasDecided) {
  CoreDriver driver("c1");
  driver.Handle(ProcessFound{.id = Rank(0), .token = "old", .pid = 9});
  driver.Handle(AllFound{});
  ASSERT_EQ(driver.All<Dial>().at(0).hello.trainers_size(), 1);
  driver.Run(absl::Minutes(10));
  EXPECT_THAT(driver.All<SignalProcess>(), IsEmpty());

  driver.Handle(driver.Welcome());
  EXPECT_THAT(driver.All<SignalProcess>(), IsEmpty());
  driver.Handle(driver.State(1, {Desired(Rank(0))}));

  EXPECT_THAT(driver.All<SignalProcess>(), IsEmpty());
  EXPECT_THAT(driver.All<StartProcess>(), IsEmpty());
}

TEST(AgentCore, TrainersOfUnknownJobs_ContinueWithTheirSnapshotsUntilTheyEnd) {
  CoreDriver driver;
  driver.Handle(ProcessFound{.id = Rank(0), .token = "a", .pid = 8});
  driver.Attach();
  DesiredStateReceived received = driver.State(1, {});
  received.desired.add_unknown_jobs(kJob);
  driver.Handle(received);
  driver.Run(absl::Seconds(30));
  EXPECT_THAT(driver.All<SignalProcess>(), IsEmpty());
  EXPECT_THAT(driver.All<EndGroup>(), IsEmpty());
  EXPECT_THAT(driver.All<KeepSnapshots>().back().jobs, ElementsAre(kJob));

  driver.Handle(driver.State(2, {}));
  EXPECT_THAT(driver.Last<SignalProcess>(), SizeIs(1))
      << "the coordinator knows the job again and does not want its trainer, so the trainer must be ended";
}

TEST(AgentCore, FoundTrainer_MayConnectBeforeTheCoordinatorHasDecided) {
  CoreDriver driver;
  driver.Handle(ProcessFound{.id = Rank(0), .token = "old", .pid = 9});

  driver.Handle(driver.Open(kLink1, Rank(0)));
  EXPECT_THAT(driver.Last<CloseLink>(), IsEmpty());
  EXPECT_THAT(driver.Last<SendLinkMessage>(), IsEmpty());
  driver.Attach();
  driver.Handle(driver.State(1, {Desired(Rank(0))}));

  EXPECT_TRUE(driver.Last<SendLinkMessage>().at(0).message.has_start());
}

TEST(AgentCore, RankThatEndedInAnEarlierIncarnation_IsReportedAndNotStartedAgain) {
  CoreDriver driver;
  driver.Handle(ProcessFound{.id = Rank(0), .token = "old", .pid = 9});
  driver.Handle(driver.Ended(Rank(0), 4));
  driver.Handle(ProcessFound{.id = Rank(1), .token = "old", .reported = true});
  driver.Attach();
  EXPECT_EQ(driver.LastFacts().back().exited().code(), 4);

  driver.Handle(driver.State(1, {Desired(Rank(0)), Desired(Rank(1))}));

  EXPECT_THAT(driver.All<StartProcess>(), IsEmpty());
}

// ---- the session ----

TEST(AgentCore, FailedDials_BackOffFrom50MillisecondsToASecondAndLogTheReasonOnce) {
  CoreDriver driver;
  std::vector<int64_t> waits;
  driver.Handle(AllFound{});
  driver.ForgetEffects();

  for (int i = 0; i < 8; ++i) {
    driver.Handle(SessionEnded{absl::UnavailableError("refused")});
    waits.push_back(absl::ToInt64Milliseconds(driver.core().NextWake() - driver.now()));
    driver.Advance(driver.core().NextWake() - driver.now());
    driver.Handle(Tick{});
    ASSERT_THAT(driver.Last<Dial>(), SizeIs(1));
  }

  EXPECT_THAT(waits, ElementsAre(50, 100, 200, 400, 800, 1000, 1000, 1000));
  ASSERT_THAT(driver.All<Log>(), SizeIs(1));
  EXPECT_THAT(driver.All<Log>()[0].text, HasSubstr("127.0.0.1:7070"));
}

TEST(AgentCore, CoordinatorThatDoesNotWelcome_IsDisconnected) {
  CoreDriver driver;
  driver.Handle(AllFound{});

  driver.Run(absl::Seconds(6));

  EXPECT_THAT(driver.All<HangUp>(), SizeIs(1));
}

TEST(AgentCore, Heartbeats_AreSentAtTheIntervalOfTheWelcome) {
  CoreDriver driver;
  driver.Attach();
  driver.ForgetEffects();

  driver.Run(absl::Seconds(10));

  EXPECT_THAT(driver.All<SendToCoordinator>(), SizeIs(10));
}

// HomeChecked is the result of checking the daemon's state folder and sockets (home.h).
TEST(AgentCore, TroubleOfTheHost_IsReportedImmediatelyOnEveryStreamUntilItEnds) {
  CoreDriver driver;
  auto last_trouble = [&] {
    std::string trouble = "none reported";
    for (const SendToCoordinator& sent : driver.Last<SendToCoordinator>()) {
      if (sent.message.has_heartbeat()) trouble = sent.message.heartbeat().trouble();
    }
    return trouble;
  };
  driver.Attach();

  driver.Handle(HomeChecked{.trouble = "its state folder /state is gone"});
  EXPECT_EQ(last_trouble(), "its state folder /state is gone");
  EXPECT_TRUE(driver.core().stats().trouble);
  EXPECT_THAT(driver.Last<Log>(), SizeIs(1));
  driver.Handle(HomeChecked{.trouble = "its state folder /state is gone"});
  EXPECT_THAT(driver.Last<Log>(), IsEmpty()) << "the same trouble must not be logged again";

  driver.Handle(SessionEnded{absl::UnavailableError("cut")});
  driver.Run(absl::Seconds(1));
  driver.Handle(driver.Welcome());
  EXPECT_EQ(last_trouble(), "its state folder /state is gone")
      << "a new stream begins with the trouble, before the coordinator can place a trainer on this host";

  driver.Handle(HomeChecked{});
  EXPECT_EQ(last_trouble(), "");
  EXPECT_FALSE(driver.core().stats().trouble);
}

TEST(AgentCore, NewDataAddress_IsAnnounced_IfThisHostNoLongerHasThePreviousOne) {
  CoreDriver driver;  // with the address 127.0.0.1: the coordinator's name was not resolved when the daemon started
  driver.Attach();
  driver.Handle(AddressFound{.present_is_valid = false});
  driver.Handle(AddressFound{.address = "127.0.0.1", .interface = "lo", .present_is_valid = false});
  driver.Handle(AddressFound{.address = "10.0.0.8", .interface = "eth0", .present_is_valid = true});
  EXPECT_THAT(driver.All<HangUp>(), IsEmpty());
  EXPECT_EQ(driver.core().data_address(), "127.0.0.1");

  driver.Handle(AddressFound{.address = "10.0.0.8", .interface = "eth0", .present_is_valid = false});
  EXPECT_THAT(driver.Last<HangUp>(), SizeIs(1)) << "the coordinator must learn the address";
  driver.Handle(SessionEnded{absl::UnavailableError("to announce the new data address")});
  driver.Run(absl::Seconds(1));

  EXPECT_EQ(driver.All<Dial>().back().hello.inventory().data_address(), "10.0.0.8");
  EXPECT_EQ(driver.All<Dial>().back().hello.inventory().cores(), 8u);
  driver.Handle(driver.Welcome());
  driver.Handle(driver.State(1, {Desired(Rank(0))}));
  EXPECT_EQ(driver.Last<StartProcess>().at(0).desired.data_address(), "10.0.0.8");
}

TEST_F(RunningTrainerTest, RecreatedStateFolder_ReceivesTheWaitingFactsAndTheClusterId) {
  driver_.Handle(driver_.Saved(LinkId(1), 1, 10));
  const std::string before = driver_.disk();

  driver_.Handle(HomeChecked{.state_is_new = true});

  ASSERT_EQ(ReadOutboxFile(driver_.disk()).value().facts.size(), ReadOutboxFile(before).value().facts.size());
  EXPECT_EQ(ReadOutboxFile(driver_.disk()).value().header.outbox_id(), "outbox-1")
      << "the outbox must keep its id, because the sequence numbers of its facts are still valid";
  ASSERT_THAT(driver_.Last<RememberCluster>(), SizeIs(1));
  EXPECT_EQ(driver_.Last<RememberCluster>()[0].cluster_id, "c1");
}

TEST(AgentCore, DaemonReplacedByANewerIncarnation_Leaves) {
  CoreDriver driver;
  driver.Attach();

  driver.Handle(SessionEnded{absl::AbortedError("a newer incarnation has attached")});

  ASSERT_THAT(driver.Last<Leave>(), SizeIs(1));
  EXPECT_EQ(driver.Last<Leave>()[0].exit_code, 1);
  EXPECT_THAT(driver.All<SignalProcess>(), IsEmpty());
}

TEST(AgentCore, HostNameInUse_IsRetriedForTenSecondsThenTheDaemonLeaves) {
  CoreDriver driver;
  driver.Handle(AllFound{});
  for (int i = 0; i < 40 && driver.All<Leave>().empty(); ++i) {
    driver.Handle(SessionEnded{absl::AlreadyExistsError("h1 is attached")});
    if (driver.All<Leave>().empty()) driver.Run(absl::Seconds(1));
  }

  ASSERT_THAT(driver.All<Leave>(), SizeIs(1));
  EXPECT_GE(driver.All<Dial>().size(), 8);
}

// ---- leaving ----

TEST_F(RunningTrainerTest, DaemonThatLeaves_KeepsItsTrainersAndTheirSnapshots) {
  driver_.Handle(LeaveRequested{Leaving::kKeepTrainers});

  EXPECT_EQ(driver_.Last<Leave>().at(0).exit_code, 0);
  EXPECT_FALSE(driver_.Last<Leave>()[0].remove_snapshots);
  EXPECT_THAT(driver_.All<SignalProcess>(), IsEmpty());
}

TEST(AgentCore, DaemonThatLeavesWithoutTrainers_RemovesItsSnapshots) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {}));

  driver.Handle(LeaveRequested{Leaving::kKeepTrainers});

  EXPECT_TRUE(driver.Last<Leave>().at(0).remove_snapshots);
}

TEST_F(RunningTrainerTest, StoppingTrainers_SendsSigtermThenKillsThemAfterTheGracePeriod) {
  driver_.Handle(LeaveRequested{Leaving::kStopTrainers});
  EXPECT_EQ(driver_.Last<SignalProcess>().at(0).signal, SIGTERM);
  driver_.Run(limits::kStopGrace - absl::Milliseconds(1));
  EXPECT_THAT(driver_.All<SignalProcess>(), SizeIs(1));

  driver_.Run(absl::Milliseconds(1));

  ASSERT_THAT(driver_.All<SignalProcess>(), SizeIs(2));
  EXPECT_EQ(driver_.All<SignalProcess>()[1].signal, SIGKILL);
  EXPECT_THAT(driver_.All<Leave>(), IsEmpty());
  driver_.Handle(driver_.Killed(Rank(0)));
  driver_.Handle(LinkClosed{kLink1});
  driver_.Handle(FactsAcknowledged{2});
  ASSERT_THAT(driver_.All<Leave>(), SizeIs(1));
  EXPECT_TRUE(driver_.All<Leave>()[0].remove_snapshots);
}

TEST_F(RunningTrainerTest, SecondSignal_KillsTrainersImmediately) {
  driver_.Handle(LeaveRequested{Leaving::kStopTrainers});

  driver_.Handle(LeaveRequested{Leaving::kStopTrainers});

  EXPECT_EQ(driver_.Last<SignalProcess>().at(0).signal, SIGKILL);
}

TEST_F(RunningTrainerTest, EndOfTheLifeline_KillsTrainersThenLeaves) {
  driver_.Handle(LeaveRequested{Leaving::kKillTrainers});
  EXPECT_EQ(driver_.Last<SignalProcess>().at(0).signal, SIGKILL);
  EXPECT_THAT(driver_.All<Leave>(), IsEmpty());

  driver_.Handle(driver_.Killed(Rank(0)));

  ASSERT_THAT(driver_.All<Leave>(), SizeIs(1));
  EXPECT_TRUE(driver_.All<Leave>()[0].remove_snapshots);
}

TEST_F(RunningTrainerTest, DaemonAskedToLeaveWhenIdle_LeavesOnceItsTrainersHaveEndedAndTheCoordinatorIsGone) {
  driver_.Handle(LeaveRequested{Leaving::kWhenIdle});
  driver_.Handle(driver_.State(2, {Desired(Rank(0)), Desired(Rank(1))}));
  EXPECT_THAT(driver_.Last<StartProcess>(), SizeIs(1)) << "trainers still start, because the group may form again";
  driver_.Handle(ProcessStarted{Rank(1), 4243});
  driver_.Handle(SessionEnded{absl::UnavailableError("gone")});
  driver_.Run(absl::Minutes(1));
  EXPECT_THAT(driver_.All<Leave>(), IsEmpty()) << "trainers still run, so the daemon must not leave";

  driver_.Handle(driver_.Ended(Rank(0), 0));
  driver_.Handle(driver_.Ended(Rank(1), 0));
  driver_.Run(absl::Seconds(9));
  EXPECT_THAT(driver_.All<Leave>(), IsEmpty()) << "the coordinator may be restarting, so the daemon must wait";
  driver_.Run(absl::Seconds(2));

  ASSERT_THAT(driver_.All<Leave>(), SizeIs(1));
  EXPECT_EQ(driver_.All<Leave>()[0].exit_code, 0);
  EXPECT_TRUE(driver_.All<Leave>()[0].remove_snapshots);
}

TEST(AgentCore, TrainerDesiredWhileLeaving_IsNotStarted) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {Desired(Rank(0))}));
  driver.Handle(LeaveRequested{Leaving::kStopTrainers});

  driver.Handle(driver.State(2, {Desired(Rank(0)), Desired(Rank(1))}));

  EXPECT_THAT(driver.Last<StartProcess>(), IsEmpty());
}

// ---- logs ----

TEST(AgentCore, LogRequest_IsServedOnceAndStoppedWhenWithdrawn) {
  CoreDriver driver;
  driver.Attach();
  DesiredStateReceived state = driver.State(1, {});
  state.desired.add_logs()->set_request_id("r1");
  driver.Handle(state);
  EXPECT_THAT(driver.Last<StartLogs>(), SizeIs(1));
  driver.Handle(LogsEnded{"r1"});
  EXPECT_THAT(driver.Last<ForgetLogs>(), SizeIs(1));

  state.desired.set_revision(2);
  driver.Handle(state);
  EXPECT_THAT(driver.Last<StartLogs>(), IsEmpty());
  driver.Handle(driver.State(3, {}));

  EXPECT_THAT(driver.Last<StopLogs>(), SizeIs(1));
}

TEST(AgentCore, LogRequestThatStopsFollowing_IsStoppedOnce) {
  CoreDriver driver;
  driver.Attach();
  DesiredStateReceived state = driver.State(1, {});
  v1::LogRequest* request = state.desired.add_logs();
  request->set_request_id("r1");
  request->set_follow(true);
  driver.Handle(state);

  state.desired.set_revision(2);
  request = state.desired.mutable_logs(0);
  request->set_follow(false);
  driver.Handle(state);
  EXPECT_THAT(driver.Last<StopLogs>(), SizeIs(1));
  state.desired.set_revision(3);
  driver.Handle(state);

  EXPECT_THAT(driver.Last<StopLogs>(), IsEmpty());
  EXPECT_THAT(driver.All<StartLogs>(), SizeIs(1));
}

}  // namespace
}  // namespace trainyard::agent
