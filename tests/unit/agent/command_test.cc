// Commands in the daemon: when the core starts and ends them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <set>
#include <string>

#include "command_job.h"
#include "core_driver.h"
#include "worker/agent/process_memory.h"

namespace trainyard::agent {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

TEST(CommandCore, StartsARank_OnceTheAddressOfRankZeroIsKnown) {
  CoreDriver driver;
  driver.Attach();

  driver.Handle(driver.State(1, {DesiredCommand(1)}));
  EXPECT_THAT(driver.Last<StartProcess>(), IsEmpty());
  ASSERT_THAT(driver.Last<FindMaster>(), SizeIs(1));
  EXPECT_EQ(driver.Last<FindMaster>()[0].data_address, "10.0.0.1");
  driver.Handle(MasterKnown{Rank(1), "10.0.0.1:15001"});

  ASSERT_THAT(driver.Last<StartProcess>(), SizeIs(1));
  EXPECT_EQ(driver.Last<StartProcess>()[0].master, "10.0.0.1:15001");
}

TEST(CommandCore, EndsARankThatStillWaitsForTheAddress_WithoutStartingIt) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {DesiredCommand(1)}));

  driver.Handle(driver.State(2, {}));
  EXPECT_EQ(driver.LastFacts().at(0).exited().cause(), v1::TrainerExited::CAUSE_STOPPED);
  driver.Handle(MasterKnown{Rank(1), "10.0.0.1:15001"});

  EXPECT_THAT(driver.All<StartProcess>(), IsEmpty());
}

TEST(CommandCore, AnAddressThatIsNeverKnown_FailsTheStart) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {DesiredCommand(0)}));

  driver.Handle(MasterKnown{Rank(0), absl::ResourceExhaustedError("no free port")});

  EXPECT_EQ(driver.LastFacts().at(0).exited().cause(), v1::TrainerExited::CAUSE_START_FAILED);
  EXPECT_THAT(driver.LastFacts().at(0).exited().message(), HasSubstr("no free port"));
}

TEST(CommandCore, EndsAProcessWithSigterm_AndAfterItsGraceWithSigkill) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {DesiredCommand(0)}));
  driver.Handle(MasterKnown{Rank(0), "10.0.0.1:15001"});
  driver.Handle(ProcessStarted{Rank(0), 7});

  driver.Handle(driver.State(2, {}));
  ASSERT_THAT(driver.Last<SignalProcess>(), SizeIs(1));
  EXPECT_EQ(driver.Last<SignalProcess>()[0].signal, SIGTERM);
  EXPECT_TRUE(driver.Last<SignalProcess>()[0].to_group);
  driver.Run(absl::Seconds(6));

  EXPECT_EQ(driver.All<SignalProcess>().back().signal, SIGKILL);
}

TEST(CommandCore, AStopOfTheDaemon_SendsSigtermToTheGroup_AndSigkillAfterTheGrace) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {DesiredCommand(0)}));
  driver.Handle(MasterKnown{Rank(0), "10.0.0.1:15001"});
  driver.Handle(ProcessStarted{Rank(0), 7});

  driver.Handle(LeaveRequested{Leaving::kStopTrainers});
  ASSERT_THAT(driver.Last<SignalProcess>(), SizeIs(1));
  EXPECT_EQ(driver.Last<SignalProcess>()[0].signal, SIGTERM);
  EXPECT_TRUE(driver.Last<SignalProcess>()[0].to_group);
  driver.Run(absl::Seconds(4));
  EXPECT_THAT(driver.All<SignalProcess>(), SizeIs(1));
  driver.Run(absl::Seconds(2));

  EXPECT_EQ(driver.All<SignalProcess>().back().signal, SIGKILL);
}

TEST(CommandCore, AnAdoptedCommandThatIsNotDesired_GetsItsGrace) {
  CoreDriver driver;
  driver.Handle(ProcessFound{.id = Rank(0), .pid = 7, .command_grace = absl::Seconds(5)});
  driver.Attach();

  driver.Handle(driver.State(1, {}));
  ASSERT_THAT(driver.Last<SignalProcess>(), SizeIs(1));
  EXPECT_EQ(driver.Last<SignalProcess>()[0].signal, SIGTERM);
  driver.Run(absl::Seconds(6));

  EXPECT_EQ(driver.All<SignalProcess>().back().signal, SIGKILL);
}

TEST(CommandCore, AnAdoptedCommand_CountsAsStopped_OnlyIfAnEarlierDaemonHasEndedIt) {
  for (const bool stopped : {true, false}) {
    CoreDriver driver;
    driver.Handle(ProcessFound{.id = Rank(0), .pid = 7, .command_grace = absl::Seconds(5), .stopped = stopped});
    v1::TrainerExited exited;
    exited.set_cause(v1::TrainerExited::CAUSE_EXIT);
    driver.Handle(ProcessEnded{Rank(0), exited});
    driver.Attach();

    EXPECT_EQ(driver.AllFacts().back().exited().cause(),
              stopped ? v1::TrainerExited::CAUSE_STOPPED : v1::TrainerExited::CAUSE_EXIT);
  }
}

TEST(CommandCore, KillsARankThatUsesTooMuchMemory_AndReportsTheLimit) {
  CoreDriver driver;
  driver.Attach();
  v1::JobSpec spec = CommandSpec();
  spec.mutable_command()->set_memory_bytes(1 << 20);
  driver.Handle(driver.State(1, {DesiredCommand(0, spec)}));
  driver.Handle(MasterKnown{Rank(0), "10.0.0.1:15001"});
  driver.Handle(ProcessStarted{Rank(0), 7});

  driver.Handle(ProcessesSampled{{{Rank(0), "R", 1.0, 1 << 20}}});
  EXPECT_THAT(driver.All<SignalProcess>(), IsEmpty());
  driver.Handle(ProcessesSampled{{{Rank(0), "R", 1.0, (1 << 20) + 1}}});
  driver.Handle(ProcessesSampled{{{Rank(0), "R", 1.0, (1 << 20) + 1}}});
  ASSERT_THAT(driver.All<SignalProcess>(), SizeIs(1));
  EXPECT_EQ(driver.All<SignalProcess>()[0].signal, SIGKILL);
  v1::TrainerExited exited;
  exited.set_cause(v1::TrainerExited::CAUSE_SIGNAL);
  exited.set_signal(SIGKILL);
  driver.Handle(ProcessEnded{Rank(0), exited});

  EXPECT_EQ(driver.AllFacts().back().exited().cause(), v1::TrainerExited::CAUSE_SIGNAL);
  EXPECT_THAT(driver.AllFacts().back().exited().message(), HasSubstr("more than command.memory_bytes (1048576)"));
}

TEST(CommandCore, LimitsTheMemoryOfAnAdoptedCommand_BeforeTheCoordinatorAnswers) {
  CoreDriver driver;
  driver.Handle(
      ProcessFound{.id = Rank(0), .pid = 7, .command_grace = absl::Seconds(5), .memory_limit = uint64_t{1} << 20});
  driver.Handle(AllFound{});

  ASSERT_THAT(driver.All<SampleProcesses>(), SizeIs(testing::Ge(1)));
  EXPECT_EQ(driver.All<SampleProcesses>().back().processes.at(0).memory_limit, uint64_t{1} << 20);
  driver.Handle(ProcessesSampled{{{Rank(0), "R", 1.0, (1 << 20) + 1}}});

  ASSERT_THAT(driver.All<SignalProcess>(), SizeIs(1));
  EXPECT_EQ(driver.All<SignalProcess>()[0].signal, SIGKILL);
}

v1::JobSpec SpecWithCheck() {
  v1::JobSpec spec = CommandSpec();
  spec.mutable_command()->mutable_check()->add_argv("nvidia-smi");
  spec.mutable_command()->mutable_check()->set_time_limit_s(60);
  return spec;
}

v1::TrainerExited ExitWith(int code, const std::string& line = "") {
  v1::TrainerExited exited;
  exited.set_cause(v1::TrainerExited::CAUSE_EXIT);
  exited.set_code(code);
  if (!line.empty()) exited.add_last_lines(line);
  return exited;
}

TEST(CommandCheck, RunsOnceOnAHost_BeforeItsRanks) {
  CoreDriver driver;
  driver.Attach();

  driver.Handle(driver.State(1, {DesiredCommand(0, SpecWithCheck()), DesiredCommand(1, SpecWithCheck())}));
  ASSERT_THAT(driver.All<StartProcess>(), SizeIs(1));
  EXPECT_EQ(driver.All<StartProcess>()[0].desired.key().rank(), kCheckRank);
  EXPECT_THAT(driver.All<FindMaster>(), IsEmpty());
  driver.Handle(ProcessStarted{Rank(kCheckRank), 7});
  driver.Handle(ProcessEnded{Rank(kCheckRank), ExitWith(0)});

  EXPECT_THAT(driver.All<FindMaster>(), SizeIs(2));
  EXPECT_THAT(driver.All<StartProcess>(), SizeIs(1));
}

TEST(CommandCheck, AFailure_RefusesTheHost_WithTheLastLineOfOutput) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {DesiredCommand(0, SpecWithCheck()), DesiredCommand(1, SpecWithCheck())}));

  driver.Handle(ProcessEnded{Rank(kCheckRank), ExitWith(3, "no devices were found")});

  EXPECT_THAT(driver.All<FindMaster>(), IsEmpty());
  int refused = 0;
  for (const v1::Fact& fact : driver.AllFacts()) {
    if (!fact.has_exited()) continue;
    ++refused;
    EXPECT_TRUE(fact.exited().check_failed());
    EXPECT_EQ(fact.exited().message(),
              "the check of this host (command.check) exited with code 3: no devices were found");
  }
  EXPECT_EQ(refused, 2);
}

TEST(CommandCheck, IsKilledAtItsTimeLimit_AndWhenItsGroupIsOver) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {DesiredCommand(0, SpecWithCheck())}));
  driver.Run(absl::Seconds(61));
  ASSERT_THAT(driver.All<SignalProcess>(), SizeIs(1));
  EXPECT_EQ(driver.All<SignalProcess>()[0].id, Rank(kCheckRank));
  // The rank is refused although the killed check has not ended yet.
  EXPECT_THAT(driver.AllFacts().back().exited().message(), HasSubstr("did not end within its time limit"));
  EXPECT_TRUE(driver.AllFacts().back().exited().check_failed());
  const size_t facts = driver.AllFacts().size();
  v1::TrainerExited killed;
  killed.set_cause(v1::TrainerExited::CAUSE_SIGNAL);
  killed.set_signal(SIGKILL);
  driver.Handle(ProcessEnded{Rank(kCheckRank), killed});
  EXPECT_EQ(driver.AllFacts().size(), facts);

  CoreDriver dropped;
  dropped.Attach();
  dropped.Handle(dropped.State(1, {DesiredCommand(0, SpecWithCheck())}));
  dropped.Handle(dropped.State(2, {}));

  ASSERT_THAT(dropped.All<SignalProcess>(), SizeIs(1));
  EXPECT_EQ(dropped.All<SignalProcess>()[0].id, Rank(kCheckRank));
  EXPECT_EQ(dropped.AllFacts().back().exited().cause(), v1::TrainerExited::CAUSE_STOPPED);
}

TEST(CommandCheck, IsKilledWhenTheDaemonLeaves_UnlessItHasEnded) {
  CoreDriver running, passed, failed;
  for (CoreDriver* driver : {&running, &passed, &failed}) {
    driver->Attach();
    driver->Handle(driver->State(1, {DesiredCommand(0, SpecWithCheck())}));
  }
  passed.Handle(ProcessEnded{Rank(kCheckRank), ExitWith(0)});
  failed.Handle(ProcessEnded{Rank(kCheckRank), ExitWith(3)});

  for (CoreDriver* driver : {&running, &passed, &failed}) driver->Handle(LeaveRequested{Leaving::kStopTrainers});

  ASSERT_THAT(running.All<SignalProcess>(), SizeIs(1));
  EXPECT_EQ(running.All<SignalProcess>()[0].id, Rank(kCheckRank));
  EXPECT_THAT(failed.All<SignalProcess>(), IsEmpty());
  for (const SignalProcess& sent : passed.All<SignalProcess>()) EXPECT_NE(sent.id, Rank(kCheckRank));
}

TEST(CommandCheck, WaitsForTheKilledCheckOfAnEarlierGeneration) {
  CoreDriver driver;
  driver.Attach();
  v1::DesiredTrainer next = DesiredCommand(0, SpecWithCheck());
  TrainerId next_check = Rank(kCheckRank);
  next_check.generation = Generation(next.key().generation() + 1);
  next.mutable_key()->set_generation(next_check.generation.value());
  driver.Handle(driver.State(1, {DesiredCommand(0, SpecWithCheck())}));

  driver.Handle(driver.State(2, {next}));
  EXPECT_THAT(driver.All<StartProcess>(), SizeIs(1));
  driver.Handle(CoreDriver::Killed(Rank(kCheckRank)));

  ASSERT_THAT(driver.All<StartProcess>(), SizeIs(2));
  EXPECT_EQ(FromProto(driver.All<StartProcess>()[1].desired.key()), next_check);
}

TEST(CommandCheck, RefusesTheHost_IfTheKilledCheckOfAnEarlierGenerationDoesNotEnd) {
  CoreDriver driver;
  driver.Attach();
  v1::DesiredTrainer next = DesiredCommand(0, SpecWithCheck());
  next.mutable_key()->set_generation(next.key().generation() + 1);
  driver.Handle(driver.State(1, {DesiredCommand(0, SpecWithCheck())}));
  driver.Handle(driver.State(2, {next}));

  driver.Run(absl::Seconds(61));

  EXPECT_THAT(driver.All<StartProcess>(), SizeIs(1));
  EXPECT_THAT(driver.AllFacts().back().exited().message(), HasSubstr("earlier generation has not ended"));
}

TEST(CommandCpus, AreDifferentForEachRank_AndFreeAgainWhenItEnds) {
  CoreDriver driver;
  driver.Attach();
  v1::JobSpec spec = CommandSpec();
  spec.mutable_command()->set_cpus(2);
  const std::vector<v1::DesiredTrainer> three = {DesiredCommand(0, spec), DesiredCommand(1, spec),
                                                 DesiredCommand(2, spec)};
  driver.Handle(driver.State(1, three));
  for (uint32_t rank : {0, 1}) driver.Handle(MasterKnown{Rank(rank), "10.0.0.1:15001"});

  ASSERT_THAT(driver.All<StartProcess>(), SizeIs(2));
  EXPECT_THAT(driver.All<StartProcess>()[0].cpus, testing::ElementsAre(0, 1));
  EXPECT_THAT(driver.All<StartProcess>()[1].cpus, testing::ElementsAre(2, 5));
  EXPECT_EQ(driver.AllFacts().back().exited().message(), "only 0 of the host's 4 CPUs are free, and command.cpus is 2");
  EXPECT_TRUE(driver.AllFacts().back().exited().may_pass());
  driver.Handle(ProcessStarted{Rank(0), 7});
  driver.Handle(ProcessEnded{Rank(0), ExitWith(1)});
  v1::DesiredTrainer next = DesiredCommand(0, spec);
  next.mutable_key()->set_generation(2);
  driver.Handle(driver.State(2, {next, three[1]}));
  driver.Handle(MasterKnown{Rank(0, 2), "10.0.0.1:15001"});
  EXPECT_THAT(driver.All<StartProcess>().back().cpus, testing::ElementsAre(0, 1));
}

TEST(CommandCpus, OfAnAdoptedRank_AreNotGivenAway) {
  CoreDriver driver;
  driver.Handle(ProcessFound{.id = Rank(0), .pid = 7, .command_grace = absl::Seconds(5), .cpus = {0, 2}});
  driver.Attach();
  v1::JobSpec spec = CommandSpec();
  spec.mutable_command()->set_cpus(2);

  driver.Handle(driver.State(1, {DesiredCommand(0, spec), DesiredCommand(1, spec)}));
  driver.Handle(MasterKnown{Rank(1), "10.0.0.1:15001"});

  EXPECT_THAT(driver.Last<StartProcess>().at(0).cpus, testing::ElementsAre(1, 5));
}

TEST(ProcessMemory, CountsTheDescendantsOfTheShim) {
  const std::vector<ProcessMemory> processes = {{1, 0, 1},   {10, 1, 2},  {11, 10, 4},
                                                {12, 11, 8}, {9, 12, 16}, {13, 10, 32}};

  uint64_t pages = 0;
  for (const ProcessMemory& process : ProcessesOfRank(processes, 11)) pages += process.resident_pages;

  EXPECT_EQ(pages, 4u + 8u + 16u + 32u);
  EXPECT_THAT(ProcessesOfRank(processes, 99), IsEmpty());
}

TEST(ProcessMemory, IsReadFromProc) {
  const auto memory = ParseProcessMemory(7, "7 (a) R 1) S 3 4 5 0 -1 0 0 0 0 0 0 0 0 0 0 0 1 0 9 1000 250 0");
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->parent, 3);
  EXPECT_EQ(memory->resident_pages, 250u);
  EXPECT_FALSE(ParseProcessMemory(7, "7 (a").has_value());
  EXPECT_EQ(ParseProportionalBytes("Rss:  9 kB\nPss:   3 kB\n"), 3u << 10);
  EXPECT_FALSE(ParseProportionalBytes("Rss: 9 kB\n").has_value());
  EXPECT_GT(MemoryOfRank(ListProcessMemory(), getpid(), 1), 0u);
}

TEST(CommandCore, AProcessThatWasAskedToEnd_CountsAsStopped_HoweverItExits) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {DesiredCommand(0)}));
  driver.Handle(MasterKnown{Rank(0), "10.0.0.1:15001"});
  driver.Handle(ProcessStarted{Rank(0), 7});
  driver.Handle(driver.State(2, {}));
  v1::TrainerExited exited;
  exited.set_cause(v1::TrainerExited::CAUSE_EXIT);
  exited.set_code(1);

  driver.Handle(ProcessEnded{Rank(0), exited});

  EXPECT_EQ(driver.LastFacts().back().exited().cause(), v1::TrainerExited::CAUSE_STOPPED);
}

// Starts rank 0 of a command, which opens a link from process 70.
void StartReporting(CoreDriver& driver) {
  driver.Attach();
  driver.Handle(driver.State(1, {DesiredCommand(0)}));
  driver.Handle(MasterKnown{Rank(0), "10.0.0.1:15001"});
  driver.Handle(ProcessStarted{Rank(0), 7});
  LinkOpened opened = driver.Open(LinkId(1), Rank(0));
  opened.registration.set_pid(70);
  driver.Handle(opened);
  driver.Run(absl::Seconds(1));  // sends the fact that the rank was started
}

TEST(CommandLinks, CarryTheStepsOfAScript_ButNoFacts) {
  CoreDriver driver;
  StartReporting(driver);

  driver.Handle(driver.Steps(LinkId(1), 1, 3));
  EXPECT_EQ(driver.LastSteps(), (std::vector<uint64_t>{1, 2, 3}));
  driver.ForgetEffects();
  driver.Handle(driver.Saved(LinkId(1), 1, 3));
  driver.Run(absl::Seconds(1));

  EXPECT_THAT(driver.AllFacts(), IsEmpty());
}

TEST(CommandLinks, ALinkFromAChildOfTheScript_IsAcceptedOnlyAfterTheLinkOfTheScriptIsClosed) {
  CoreDriver driver;
  StartReporting(driver);
  LinkOpened child = driver.Open(LinkId(2), Rank(0));
  child.registration.set_pid(71);

  driver.Handle(child);
  ASSERT_THAT(driver.Last<CloseLink>(), SizeIs(1));
  EXPECT_TRUE(absl::IsAlreadyExists(driver.Last<CloseLink>()[0].status));
  EXPECT_EQ(driver.Last<CloseLink>()[0].link, LinkId(2));
  driver.Handle(LinkClosed{LinkId(1)});
  child.link = LinkId(3);
  driver.Handle(child);

  EXPECT_THAT(driver.Last<CloseLink>(), IsEmpty());
}

// A script may report for the first time when it has received SIGTERM: the checkpoint that it saves before it exits.
TEST(CommandLinks, ALinkThatIsOpenedInTheGracePeriod_CarriesTheLastCheckpoint) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {DesiredCommand(0)}));
  driver.Handle(MasterKnown{Rank(0), "10.0.0.1:15001"});
  driver.Handle(ProcessStarted{Rank(0), 7});
  driver.Run(absl::Seconds(1));
  driver.Handle(driver.State(2, {}));

  driver.Handle(driver.Open(LinkId(1), Rank(0), /*reconnect=*/true));
  ASSERT_THAT(driver.Last<CloseLink>(), IsEmpty());
  LinkReport report = driver.Steps(LinkId(1), 1, 3);
  report.report.mutable_script_checkpoint()->set_step(3);
  report.report.mutable_script_checkpoint()->set_path("/runs/step-3");
  driver.ForgetEffects();
  driver.Handle(report);
  driver.Handle(driver.Ended(Rank(0), 0));
  driver.Run(absl::Seconds(1));

  std::vector<uint64_t> saved;
  for (const SendToCoordinator& sent : driver.All<SendToCoordinator>()) {
    for (const v1::RankReport& sent_report : sent.message.reports().reports()) {
      if (sent_report.has_script_checkpoint()) saved.push_back(sent_report.script_checkpoint().step());
    }
  }
  EXPECT_THAT(saved, Contains(3u));
  EXPECT_EQ(driver.AllFacts().back().exited().cause(), v1::TrainerExited::CAUSE_STOPPED);
}

TEST(CommandLinks, ALinkIsRefused_OnceTheGracePeriodIsOver) {
  CoreDriver driver;
  driver.Attach();
  driver.Handle(driver.State(1, {DesiredCommand(0)}));
  driver.Handle(MasterKnown{Rank(0), "10.0.0.1:15001"});
  driver.Handle(ProcessStarted{Rank(0), 7});
  driver.Handle(driver.State(2, {}));
  driver.Run(absl::Seconds(6));

  driver.Handle(driver.Open(LinkId(1), Rank(0), /*reconnect=*/true));

  ASSERT_THAT(driver.Last<CloseLink>(), SizeIs(1));
  EXPECT_TRUE(absl::IsAborted(driver.Last<CloseLink>()[0].status));
}

}  // namespace
}  // namespace trainyard::agent
