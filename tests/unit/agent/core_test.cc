// The daemon's core and the trainers of a job: starting and ending them, their links, facts and reports.
#include "worker/agent/core.h"

#include <signal.h>

#include "common/limits.h"
#include "tests/unit/agent/core_driver.h"

namespace trainyard::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr LinkId kLink2(2);

TEST(AgentCore, Hello_WaitsUntilAllTrainersOfAnEarlierIncarnationAreFound) {
  CoreDriver driver;
  driver.Handle(ProcessFound{.id = Rank(0), .token = "a", .pid = 8});
  driver.Run(absl::Minutes(1));
  driver.Handle(ProcessFound{.id = Rank(1), .token = "b", .pid = 9});
  EXPECT_THAT(driver.All<Dial>(), IsEmpty());

  driver.Handle(AllFound{});

  EXPECT_EQ(driver.Last<Dial>().at(0).hello.trainers_size(), 2);
}

TEST(AgentCore, Dial_SendsAHelloWithHostIncarnationSlotsAndProtocol) {
  CoreDriver driver;

  driver.Handle(AllFound{});

  ASSERT_THAT(driver.Last<Dial>(), SizeIs(1));
  v1::Hello hello = driver.Last<Dial>()[0].hello;
  EXPECT_EQ(hello.host(), "h1");
  EXPECT_EQ(hello.incarnation(), 77);
  EXPECT_EQ(hello.slots(), 2);
  EXPECT_EQ(hello.protocol(), limits::kProtocol);
  EXPECT_EQ(hello.trainers_size(), 0);
}

TEST(AgentCore, DesiredTrainer_IsStartedOnceWithATokenAndItsShareOfCores) {
  CoreDriver driver;
  driver.Attach();

  driver.Handle(driver.State(1, {Desired(Rank(0)), Desired(Rank(1))}));
  std::vector<StartProcess> started = driver.Last<StartProcess>();
  driver.Handle(driver.State(2, {Desired(Rank(0)), Desired(Rank(1))}));

  ASSERT_THAT(started, SizeIs(2));
  EXPECT_EQ(started[0].threads, 4);
  EXPECT_NE(started[0].token, started[1].token);
  EXPECT_EQ(started[0].desired.data_address(), "127.0.0.1");
  EXPECT_THAT(driver.Last<StartProcess>(), IsEmpty());
}

TEST(AgentCore, NetworkInterface_DecidesTheDataAddress) {
  CoreDriver driver;
  driver.Attach();
  v1::JobSpec spec;
  spec.mutable_network()->set_interface("eth1");
  v1::DesiredTrainer desired = Desired(Rank(0));
  desired.set_spec(spec.SerializeAsString());

  driver.Handle(driver.State(1, {desired}));

  EXPECT_EQ(driver.Last<StartProcess>().at(0).desired.data_address(), "10.0.0.7");
}

TEST(AgentCore, MissingNetworkInterface_FailsTheStartAndListsTheInterfaces) {
  CoreDriver driver;
  driver.Attach();
  v1::JobSpec spec;
  spec.mutable_network()->set_interface("eth9");
  v1::DesiredTrainer desired = Desired(Rank(0));
  desired.set_spec(spec.SerializeAsString());

  driver.Handle(driver.State(1, {desired}));

  EXPECT_THAT(driver.Last<StartProcess>(), IsEmpty());
  ASSERT_THAT(driver.LastFacts(), SizeIs(1));
  EXPECT_EQ(driver.LastFacts()[0].exited().cause(), v1::TrainerExited::CAUSE_START_FAILED);
  EXPECT_THAT(driver.LastFacts()[0].exited().message(), HasSubstr("interfaces of this host: eth1, lo"));
}

TEST(AgentCore, JobIdThatIsAPath_IsNotStarted) {
  CoreDriver driver;
  driver.Attach();
  v1::DesiredTrainer desired = Desired(Rank(0));
  desired.mutable_key()->set_job_id("../../etc");

  driver.Handle(driver.State(1, {desired}));

  EXPECT_THAT(driver.Last<StartProcess>(), IsEmpty());
}

TEST(AgentCore, Snapshots_AreKeptUntilTheirJobIsOver) {
  CoreDriver driver;
  driver.Attach();
  EXPECT_THAT(driver.All<KeepSnapshots>(), IsEmpty()) << "the jobs are not known yet";
  DesiredStateReceived state = driver.State(1, {Desired(Rank(0))});
  state.desired.add_jobs("other234");
  driver.Handle(state);
  EXPECT_THAT(driver.Last<KeepSnapshots>().at(0).jobs, ElementsAre(kJob, "other234"));
  driver.Handle(ProcessStarted{Rank(0), 1});

  state = driver.State(2, {});
  state.desired.add_jobs(kJob);
  driver.Handle(state);
  EXPECT_THAT(driver.Last<KeepSnapshots>().at(0).jobs, ElementsAre(kJob));
  driver.Handle(driver.Killed(Rank(0)));
  EXPECT_THAT(driver.Last<KeepSnapshots>(), IsEmpty());
  driver.Handle(driver.State(3, {}));
  EXPECT_THAT(driver.Last<KeepSnapshots>().at(0).jobs, IsEmpty());
  driver.Handle(driver.State(4, {}));
  EXPECT_THAT(driver.Last<KeepSnapshots>(), IsEmpty()) << "nothing has changed";
}

TEST(AgentCore, SnapshotsOfATrainerWhoseJobIsOver_AreRemovedWhenItEnds) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {Desired(Rank(0))}));
  driver.Handle(ProcessStarted{Rank(0), 1});
  driver.Handle(driver.State(2, {}));

  driver.Handle(driver.Killed(Rank(0)));

  EXPECT_THAT(driver.Last<KeepSnapshots>().at(0).jobs, IsEmpty());
}

TEST(AgentCore, OlderRevision_IsIgnored) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(5, {Desired(Rank(0))}));

  driver.Handle(driver.State(4, {}));
  driver.Handle(driver.State(5, {}));

  EXPECT_THAT(driver.All<SignalProcess>(), IsEmpty());
}

TEST(AgentCore, FirstDesiredStateAfterAWelcome_IsAppliedWithAnyRevision) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(5, {Desired(Rank(0))}));
  driver.Handle(ProcessStarted{Rank(0), 1});
  driver.Handle(SessionEnded{absl::UnavailableError("gone")});
  driver.Run(absl::Seconds(1));
  driver.Handle(driver.Welcome());

  driver.Handle(driver.State(1, {}));

  ASSERT_THAT(driver.Last<SignalProcess>(), SizeIs(1));
  EXPECT_EQ(driver.Last<SignalProcess>()[0].signal, SIGKILL);
}

TEST_F(RunningTrainerTest, TrainerNoLongerDesired_IsAskedToAbortThenKilledAndReportedAsStopped) {
  driver_.Handle(driver_.State(2, {}));
  ASSERT_THAT(driver_.Last<SendLinkMessage>(), SizeIs(1));
  EXPECT_THAT(driver_.Last<SendLinkMessage>()[0].message.abort().reason(), HasSubstr("generation 1"));
  EXPECT_THAT(driver_.Last<EndGroup>(), SizeIs(1));
  driver_.Handle(driver_.State(3, {}));
  driver_.Run(absl::Milliseconds(499));
  EXPECT_THAT(driver_.All<SignalProcess>(), IsEmpty());
  driver_.Run(absl::Milliseconds(1));
  ASSERT_THAT(driver_.All<SignalProcess>(), SizeIs(1));
  EXPECT_EQ(driver_.All<SignalProcess>()[0].signal, SIGKILL);

  driver_.Handle(driver_.Killed(Rank(0)));
  driver_.Handle(LinkClosed{kLink1});

  ASSERT_THAT(driver_.LastFacts(), SizeIs(1));
  EXPECT_EQ(driver_.LastFacts()[0].exited().cause(), v1::TrainerExited::CAUSE_STOPPED);
}

TEST_F(RunningTrainerTest, TrainerWithoutALink_IsKilledImmediatelyWhenNoLongerDesired) {
  driver_.Handle(LinkClosed{kLink1});

  driver_.Handle(driver_.State(2, {}));

  ASSERT_THAT(driver_.Last<SignalProcess>(), SizeIs(1));
  EXPECT_EQ(driver_.Last<SignalProcess>()[0].signal, SIGKILL);
}

TEST_F(RunningTrainerTest, TrainerThatEndedBeforeTheKill_KeepsItsOwnCause) {
  driver_.Handle(driver_.State(2, {}));

  driver_.Handle(driver_.Ended(Rank(0), 5));
  driver_.Handle(LinkClosed{kLink1});

  EXPECT_EQ(driver_.LastFacts().at(0).exited().cause(), v1::TrainerExited::CAUSE_EXIT);
  EXPECT_EQ(driver_.LastFacts().at(0).exited().code(), 5);
}

TEST_F(RunningTrainerTest, TrainerThatExitsWhenAskedToAbort_CountsAsEndedByTheDaemon) {
  driver_.Handle(driver_.State(2, {}));

  driver_.Handle(driver_.Ended(Rank(0), 3));
  driver_.Handle(LinkClosed{kLink1});

  EXPECT_EQ(driver_.LastFacts().at(0).exited().cause(), v1::TrainerExited::CAUSE_STOPPED);
  driver_.Run(absl::Seconds(1));
  EXPECT_THAT(driver_.All<SignalProcess>(), IsEmpty());
}

TEST(AgentCore, TrainerThatIsNoLongerDesiredWhileItStarts_DelaysTheAppliedRevision) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {Desired(Rank(0))}));

  driver.Handle(driver.State(2, {}));
  driver.Run(absl::Milliseconds(1500));
  std::vector<SendToCoordinator> before = driver.Last<SendToCoordinator>();
  driver.Handle(ProcessStarted{Rank(0), 7});

  ASSERT_FALSE(before.empty());
  EXPECT_EQ(before.back().message.heartbeat().applied_revision(), 1);
  // The fact is sent first, then the revision.
  ASSERT_THAT(driver.Last<SendToCoordinator>(), SizeIs(2));
  EXPECT_TRUE(driver.Last<SendToCoordinator>()[0].message.facts().facts(0).has_started());
  EXPECT_EQ(driver.Last<SendToCoordinator>()[1].message.heartbeat().applied_revision(), 2);
}

TEST_F(RunningTrainerTest, RegisteredTrainer_ReceivesTheSpecOnceAndGoAndStopWhenDesired) {
  ASSERT_THAT(driver_.All<SendLinkMessage>(), SizeIs(1));
  EXPECT_TRUE(driver_.All<SendLinkMessage>()[0].message.has_start());
  v1::DesiredTrainer desired = Desired(Rank(0));
  desired.set_go(true);

  driver_.Handle(driver_.State(2, {desired}));
  ASSERT_THAT(driver_.Last<SendLinkMessage>(), SizeIs(1));
  EXPECT_TRUE(driver_.Last<SendLinkMessage>()[0].message.has_go());
  desired.set_stop(true);
  driver_.Handle(driver_.State(3, {desired}));

  ASSERT_THAT(driver_.Last<SendLinkMessage>(), SizeIs(1));
  EXPECT_EQ(driver_.Last<SendLinkMessage>()[0].message.stop().request(), 1);
  EXPECT_THAT(driver_.All<SignalProcess>(), IsEmpty());
}

TEST_F(RunningTrainerTest, RequestedAndGrantedSaves_AreSentOncePerLink) {
  v1::DesiredTrainer desired = Desired(Rank(0));
  desired.set_save_requests(2);
  desired.add_grants()->set_step(40);
  driver_.Handle(driver_.State(2, {desired}));
  ASSERT_THAT(driver_.Last<SendLinkMessage>(), SizeIs(2));
  EXPECT_EQ(driver_.Last<SendLinkMessage>()[0].message.save().request(), 2u);
  EXPECT_EQ(driver_.Last<SendLinkMessage>()[1].message.grants().grants(0).step(), 40u);

  driver_.Handle(driver_.State(3, {desired}));
  EXPECT_THAT(driver_.Last<SendLinkMessage>(), IsEmpty()) << "nothing has changed";
  desired.add_grants()->set_step(60);
  driver_.Handle(driver_.State(4, {desired}));
  ASSERT_THAT(driver_.Last<SendLinkMessage>(), SizeIs(1));
  EXPECT_THAT(driver_.Last<SendLinkMessage>()[0].message.grants().grants(), SizeIs(2));

  driver_.Handle(driver_.Open(LinkId(2), Rank(0), /*reconnect=*/true));
  std::vector<SendLinkMessage> again = driver_.Last<SendLinkMessage>();
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_EQ(again[0].message.save().request(), 2u);
  EXPECT_THAT(again[1].message.grants().grants(), SizeIs(2));
}

TEST_F(RunningTrainerTest, ReadySave_IsForwarded) {
  LinkFact fact = {.link = LinkId(1), .fact = {}};
  fact.fact.set_sequence(1);
  fact.fact.mutable_save_ready()->set_manifest_hash("h");
  driver_.Handle(fact);

  ASSERT_THAT(driver_.LastFacts(), SizeIs(1));
  EXPECT_EQ(driver_.LastFacts()[0].save_ready().manifest_hash(), "h");
}

TEST(AgentCore, FactsThatAreNotUrgent_AreSentWithTheNextUrgentOne) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {Desired(Rank(0))}));
  driver.Handle(ProcessStarted{Rank(0), 4242});
  driver.Handle(driver.Open(kLink1, Rank(0)));
  LinkFact fact = {.link = kLink1, .fact = {}};
  fact.fact.set_sequence(1);
  fact.fact.mutable_registered();
  driver.Handle(fact);
  EXPECT_THAT(driver.AllFacts(), IsEmpty());

  fact.fact.set_sequence(2);
  fact.fact.mutable_ready()->set_first_step(1);
  driver.Handle(fact);

  ASSERT_THAT(driver.Last<SendToCoordinator>(), SizeIs(1));
  ASSERT_THAT(driver.LastFacts(), SizeIs(3));
  EXPECT_TRUE(driver.LastFacts()[0].has_started());
  EXPECT_TRUE(driver.LastFacts()[2].has_ready());
}

TEST(AgentCore, FactsThatAreNotUrgent_AreNotDelayedForLong) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {Desired(Rank(0))}));
  driver.Handle(ProcessStarted{Rank(0), 4242});

  driver.Run(absl::Milliseconds(199));
  EXPECT_THAT(driver.AllFacts(), IsEmpty());
  driver.Run(absl::Milliseconds(1));

  EXPECT_THAT(driver.AllFacts(), SizeIs(1));
}

// The heartbeat reports the applied revision, from which the coordinator concludes which trainers were never started.
TEST(AgentCore, FactsThatAreNotUrgent_AreSentBeforeAHeartbeat) {
  CoreDriver driver;
  driver.Attach();
  driver.Advance(absl::Milliseconds(900));
  driver.Handle(driver.State(1, {Desired(Rank(0))}));
  driver.Handle(ProcessStarted{Rank(0), 4242});
  driver.Run(absl::Milliseconds(50));
  EXPECT_THAT(driver.AllFacts(), IsEmpty());

  driver.Run(absl::Milliseconds(50));

  std::vector<SendToCoordinator> sent = driver.Last<SendToCoordinator>();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_TRUE(sent[0].message.has_facts());
  EXPECT_TRUE(sent[1].message.has_heartbeat());
}

TEST_F(RunningTrainerTest, Reconnect_SendsGoButNotTheSpecAgain) {
  v1::DesiredTrainer desired = Desired(Rank(0));
  desired.set_go(true);
  driver_.Handle(driver_.State(2, {desired}));

  driver_.Handle(driver_.Open(kLink2, Rank(0), /*reconnect=*/true));

  ASSERT_THAT(driver_.Last<CloseLink>(), SizeIs(1));
  EXPECT_EQ(driver_.Last<CloseLink>()[0].link, kLink1);
  ASSERT_THAT(driver_.Last<SendLinkMessage>(), SizeIs(1));
  EXPECT_TRUE(driver_.Last<SendLinkMessage>()[0].message.has_go());
}

TEST_F(RunningTrainerTest, UnknownTrainersOnTheLink_AreRefused) {
  LinkOpened wrong_token = driver_.Open(LinkId(5), Rank(0));
  wrong_token.registration.set_token("guess");

  driver_.Handle(wrong_token);
  EXPECT_TRUE(absl::IsPermissionDenied(driver_.Last<CloseLink>().at(0).status));
  driver_.Handle(driver_.Open(LinkId(6), Rank(7)));
  EXPECT_TRUE(absl::IsNotFound(driver_.Last<CloseLink>().at(0).status));
  driver_.Handle(driver_.State(2, {}));
  driver_.Handle(driver_.Open(LinkId(7), Rank(0)));
  EXPECT_TRUE(absl::IsAborted(driver_.Last<CloseLink>().at(0).status));
}

TEST_F(RunningTrainerTest, FactOfATrainer_IsAcknowledgedOnceTheCoordinatorHasIt) {
  driver_.Handle(driver_.Saved(kLink1, 1, 100));
  ASSERT_THAT(driver_.LastFacts(), SizeIs(1));
  uint64_t sequence = driver_.LastFacts()[0].sequence();
  EXPECT_EQ(sequence, 2);  // "started" was the first
  EXPECT_THAT(driver_.Last<SendLinkMessage>(), IsEmpty());

  driver_.Handle(FactsAcknowledged{sequence});

  ASSERT_THAT(driver_.Last<SendLinkMessage>(), SizeIs(1));
  EXPECT_EQ(driver_.Last<SendLinkMessage>()[0].message.ack().sequence(), 1);
}

TEST_F(RunningTrainerTest, FactReportedAgain_IsNotSentAgain) {
  driver_.Handle(driver_.Saved(kLink1, 1, 100));
  driver_.Handle(FactsAcknowledged{2});
  driver_.Handle(LinkClosed{kLink1});
  driver_.Handle(driver_.Open(kLink2, Rank(0), /*reconnect=*/true));

  driver_.Handle(driver_.Saved(kLink2, 1, 100));

  EXPECT_THAT(driver_.LastFacts(), IsEmpty());
  ASSERT_THAT(driver_.Last<SendLinkMessage>(), SizeIs(1));
  EXPECT_EQ(driver_.Last<SendLinkMessage>()[0].message.ack().sequence(), 1);
}

TEST_F(RunningTrainerTest, FactThatOnlyADaemonMayReport_IsIgnoredFromATrainer) {
  LinkFact fact = {.link = kLink1, .fact = {}};
  fact.fact.set_sequence(1);
  fact.fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_EXIT);

  driver_.Handle(fact);

  EXPECT_THAT(driver_.LastFacts(), IsEmpty());
}

TEST_F(RunningTrainerTest, Exit_IsReportedAfterAllFactsOfTheTrainer) {
  driver_.Handle(driver_.Steps(kLink1, 1, 1));
  driver_.Handle(driver_.Ended(Rank(0), 0));
  EXPECT_THAT(driver_.LastFacts(), IsEmpty());

  driver_.Handle(driver_.Steps(kLink1, 2, 3));
  driver_.Handle(driver_.Saved(kLink1, 1, 3));
  EXPECT_THAT(driver_.LastSteps(), ElementsAre(2, 3));
  driver_.Handle(LinkClosed{kLink1});

  ASSERT_THAT(driver_.LastFacts(), SizeIs(1));
  EXPECT_TRUE(driver_.LastFacts()[0].has_exited());
}

TEST_F(RunningTrainerTest, FactWithBytesThatAreNotUtf8_IsSentWithReplacementCharacters) {
  ProcessEnded ended = driver_.Ended(Rank(0), 1);
  ended.exited.set_message("cannot open /data/\xff\xfe");
  ended.exited.add_last_lines("caf\xe9");

  driver_.Handle(LinkClosed{LinkId(1)});
  driver_.Handle(ended);
  driver_.Run(absl::Seconds(1));

  const v1::TrainerExited reported = driver_.AllFacts().back().exited();
  EXPECT_EQ(reported.message(), "cannot open /data/\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(reported.last_lines(0), "caf\xef\xbf\xbd");
}

TEST_F(RunningTrainerTest, Exit_IsReportedEvenIfTheLinkDoesNotEnd) {
  driver_.Handle(driver_.Ended(Rank(0), 1));

  driver_.Run(absl::Milliseconds(300));

  EXPECT_TRUE(driver_.AllFacts().back().has_exited());
}

TEST_F(RunningTrainerTest, NewStream_SendsUnacknowledgedFactsAgainInOrder) {
  driver_.Handle(driver_.Saved(kLink1, 1, 100));
  driver_.Handle(driver_.Saved(kLink1, 2, 200));
  driver_.Handle(SessionEnded{absl::UnavailableError("gone")});
  driver_.Handle(driver_.Saved(kLink1, 3, 300));
  EXPECT_THAT(driver_.Last<SendToCoordinator>(), IsEmpty());
  driver_.Run(absl::Seconds(1));

  driver_.Handle(driver_.Welcome(/*acked_fact=*/2));

  std::vector<uint64_t> steps;
  for (const v1::Fact& fact : driver_.LastFacts()) steps.push_back(fact.saved().step());
  EXPECT_THAT(steps, ElementsAre(200, 300));
  EXPECT_EQ(driver_.LastFacts()[0].sequence(), 3);
  EXPECT_EQ(driver_.Last<SendLinkMessage>().at(0).message.ack().sequence(), 1);
}

TEST_F(RunningTrainerTest, Steps_AreSentAgainOnANewStreamBeforeFacts) {
  driver_.Handle(driver_.Steps(kLink1, 1, 2));
  driver_.Handle(SessionEnded{absl::UnavailableError("gone")});
  driver_.Handle(driver_.Steps(kLink1, 3, 4));
  driver_.Handle(driver_.Saved(kLink1, 1, 4));
  driver_.Run(absl::Seconds(1));

  driver_.Handle(driver_.Welcome());

  EXPECT_THAT(driver_.LastSteps(), ElementsAre(1, 2, 3, 4));
  EXPECT_TRUE(driver_.Last<SendToCoordinator>().front().message.has_reports());
  EXPECT_TRUE(driver_.Last<SendToCoordinator>().back().message.has_facts());
}

TEST_F(RunningTrainerTest, Hello_NamesATrainerWhoseExitIsUnreported_TheRevisionAndTheCluster) {
  driver_.Handle(SessionEnded{absl::UnavailableError("gone")});
  driver_.Handle(LinkClosed{kLink1});
  driver_.Handle(driver_.Ended(Rank(0), 0));

  driver_.Run(absl::Seconds(1));

  v1::Hello hello = driver_.All<Dial>().back().hello;
  ASSERT_EQ(hello.trainers_size(), 1);
  EXPECT_EQ(hello.trainers(0).pid(), 4242);
  EXPECT_EQ(hello.applied_revision(), 1);
  EXPECT_EQ(hello.cluster_id(), "c1");
}

TEST_F(RunningTrainerTest, AcknowledgedExit_IsMarkedInTheFolderAndForgottenWhenNotDesired) {
  driver_.Handle(LinkClosed{kLink1});
  driver_.Handle(driver_.Ended(Rank(0), 0));
  driver_.Handle(FactsAcknowledged{driver_.LastFacts().at(0).sequence()});
  EXPECT_THAT(driver_.Last<MarkReported>(), SizeIs(1));
  driver_.Handle(driver_.State(2, {}));
  driver_.Handle(SessionEnded{absl::UnavailableError("gone")});

  driver_.Run(absl::Seconds(1));

  EXPECT_EQ(driver_.All<Dial>().back().hello.trainers_size(), 0);
}

}  // namespace
}  // namespace trainyard::agent
