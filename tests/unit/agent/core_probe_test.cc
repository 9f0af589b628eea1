// What the daemon reports about a silent trainer, and how it examines processes and paths on request.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/agent/core_driver.h"

namespace trainyard::agent {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class ProbeTest : public RunningTrainerTest {
 protected:
  // Runs for `by`, as the daemon's thread does; each sample of the process has this state.
  void Advance(absl::Duration by, const std::string& state, double cpu_s = 1) {
    for (absl::Time end = driver_.now() + by; driver_.now() < end;) {
      driver_.Advance(absl::Milliseconds(100));
      driver_.Handle(Tick{});
      if (driver_.Last<SampleProcesses>().empty()) continue;
      ProcessesSampled sampled;
      sampled.samples.push_back({Rank(0), state, cpu_s});
      driver_.Handle(std::move(sampled));
      RecordReports();
    }
  }
  void RecordReports() {
    for (const SendToCoordinator& sent : driver_.Last<SendToCoordinator>()) {
      for (const v1::RankReport& report : sent.message.reports().reports()) reports_.push_back(report);
    }
  }
  DesiredStateReceived DesiredWithExaminations(uint64_t revision, const std::vector<std::string>& request_ids,
                                               const TrainerId& id = Rank(0)) {
    DesiredStateReceived received = driver_.State(revision, {Desired(Rank(0))});
    for (const std::string& request : request_ids) {
      v1::ExamineRequest& examine = *received.desired.add_examine();
      examine.set_request_id(request);
      *examine.mutable_key() = ToProto(id);
    }
    return received;
  }

  std::vector<v1::RankReport> reports_;
};

TEST_F(ProbeTest, Process_IsSampledTwiceASecondByItsPid) {
  driver_.ForgetEffects();

  Advance(absl::Seconds(2), "S");

  auto samples = driver_.All<SampleProcesses>();
  EXPECT_GE(samples.size(), 3u);
  EXPECT_LE(samples.size(), 5u);
  ASSERT_THAT(samples[0].processes, SizeIs(1));
  EXPECT_EQ(samples[0].processes[0].pid, 4242);
}

TEST_F(ProbeTest, TrainerWithoutReportsForASecond_IsReportedAsSilentWithTheAgeOfItsLastReport) {
  driver_.Handle(driver_.Steps(LinkId(1), 1, 3));

  Advance(absl::Milliseconds(900), "T");
  EXPECT_THAT(reports_, IsEmpty());
  Advance(absl::Milliseconds(2200), "T");

  ASSERT_FALSE(reports_.empty());
  EXPECT_TRUE(reports_.back().silent());
  EXPECT_EQ(reports_.back().process_state(), "T");
  EXPECT_EQ(reports_.back().last_step(), 3u);
  EXPECT_GE(reports_.back().age_s(), 2.5);
  EXPECT_EQ(reports_.back().key().job_id(), kJob);
}

TEST_F(ProbeTest, TrainerThatReports_IsNotSilentAndItsReportsContainItsProcessState) {
  Advance(absl::Milliseconds(500), "S", 2.5);

  for (uint64_t step = 1; step <= 6; ++step) {
    driver_.Handle(driver_.Steps(LinkId(1), step, step));
    RecordReports();
    Advance(absl::Milliseconds(500), "R", 2.5);
  }

  ASSERT_FALSE(reports_.empty());
  for (const v1::RankReport& report : reports_) EXPECT_FALSE(report.silent());
  EXPECT_EQ(reports_.back().process_state(), "R");
  EXPECT_EQ(reports_.back().cpu_total_s(), 2.5);
}

TEST_F(ProbeTest, TrainerWithoutALink_IsNotSilentButItsProcessIsReported) {
  driver_.Handle(LinkClosed{LinkId(1)});

  Advance(absl::Seconds(3), "T");

  ASSERT_FALSE(reports_.empty());
  EXPECT_FALSE(reports_.back().silent());
  EXPECT_EQ(reports_.back().process_state(), "T");

  // Silence is measured from the time when the link is open again.
  driver_.Handle(driver_.Open(LinkId(2), Rank(0), /*reconnect=*/true));
  reports_.clear();
  Advance(absl::Milliseconds(900), "S");
  for (const v1::RankReport& report : reports_) EXPECT_FALSE(report.silent());
  Advance(absl::Seconds(1), "S");
  EXPECT_TRUE(reports_.back().silent());
}

TEST_F(ProbeTest, DaemonThatWasSuspended_ReportsNoTrainerAsSilent) {
  Advance(absl::Seconds(1), "S");
  driver_.Handle(driver_.Steps(LinkId(1), 1, 3));
  Advance(absl::Milliseconds(100), "S");
  reports_.clear();

  driver_.Advance(absl::Seconds(8));
  Advance(absl::Milliseconds(800), "S");

  for (const v1::RankReport& report : reports_) EXPECT_FALSE(report.silent());
}

TEST_F(ProbeTest, WithoutACoordinator_NothingIsSampled) {
  driver_.Handle(SessionEnded{absl::UnavailableError("gone")});
  driver_.ForgetEffects();

  driver_.Run(absl::Seconds(3));

  EXPECT_THAT(driver_.All<SampleProcesses>(), IsEmpty());
}

TEST_F(ProbeTest, Examination_IsMadeOncePerRequestAndReportedAsAFact) {
  driver_.Handle(DesiredWithExaminations(2, {"r1"}));
  EXPECT_THAT(driver_.Last<ExamineProcess>(), SizeIs(1));
  EXPECT_EQ(driver_.Last<ExamineProcess>()[0].pid, 4242);
  driver_.Handle(DesiredWithExaminations(3, {"r1"}));
  EXPECT_THAT(driver_.Last<ExamineProcess>(), IsEmpty());
  driver_.Handle(DesiredWithExaminations(4, {"r1", "r2"}));
  EXPECT_THAT(driver_.Last<ExamineProcess>(), SizeIs(1));

  driver_.ForgetEffects();
  ProcessExamined examined{Rank(0), {}};
  examined.examination.set_request_id("r1");
  examined.examination.set_state("T");
  driver_.Handle(std::move(examined));

  std::vector<v1::Fact> facts = driver_.AllFacts();
  ASSERT_THAT(facts, SizeIs(1));
  EXPECT_EQ(facts[0].examined().request_id(), "r1");
  EXPECT_EQ(facts[0].examined().state(), "T");
  EXPECT_EQ(facts[0].key().rank(), 0u);
}

TEST_F(ProbeTest, Path_IsCheckedOnceAndItsAnswerReportedAsLongAsRequested) {
  auto desired_state = [&](uint64_t revision, bool with_path) {
    DesiredStateReceived received = driver_.State(revision, {Desired(Rank(0))});
    if (!with_path) return received;
    received.desired.add_look_for()->set_request_id("p1");
    received.desired.mutable_look_for(0)->set_path("/runs/a/step-40");
    return received;
  };
  auto reported = [&] {
    int count = 0;
    for (const SendToCoordinator& sent : driver_.All<SendToCoordinator>()) count += sent.message.reports().paths_size();
    return count;
  };
  driver_.Handle(desired_state(2, true));
  ASSERT_THAT(driver_.Last<CheckPath>(), SizeIs(1));
  EXPECT_EQ(driver_.Last<CheckPath>()[0].path, "/runs/a/step-40");
  driver_.Handle(desired_state(3, true));
  EXPECT_THAT(driver_.Last<CheckPath>(), IsEmpty());
  driver_.ForgetEffects();
  driver_.Run(absl::Seconds(3));
  EXPECT_EQ(reported(), 0) << "the path has not been checked yet";

  PathChecked checked;
  checked.answer.set_request_id("p1");
  checked.answer.set_there(true);
  driver_.Handle(checked);
  EXPECT_EQ(reported(), 1);
  driver_.Run(absl::Seconds(3));
  EXPECT_GT(reported(), 1) << "the answer must be reported again, because the first report may have been lost";
  driver_.Handle(desired_state(4, false));
  driver_.ForgetEffects();
  driver_.Run(absl::Seconds(3));
  EXPECT_EQ(reported(), 0);
}

TEST_F(ProbeTest, EndedOrUnknownTrainer_IsNotExamined) {
  driver_.Handle(DesiredWithExaminations(2, {"r1"}, Rank(1)));
  EXPECT_THAT(driver_.Last<ExamineProcess>(), IsEmpty());
  driver_.Handle(driver_.Ended(Rank(0), 1));
  driver_.Handle(DesiredWithExaminations(3, {"r2"}));
  EXPECT_THAT(driver_.Last<ExamineProcess>(), IsEmpty());
}

TEST(AgentCore, Stats_CountStartedAdoptedAndExitedTrainers) {
  CoreDriver driver;
  driver.Handle(ProcessFound{.id = Rank(0), .token = "a", .pid = 8});
  driver.Attach();
  v1::DesiredTrainer stopped = Desired(Rank(2));
  stopped.set_stop(true);

  driver.Handle(driver.State(1, {Desired(Rank(0)), Desired(Rank(1)), stopped}));
  driver.Handle(ProcessStarted{Rank(1), 9});

  CoreStats stats = driver.core().stats();
  EXPECT_EQ(stats.adopted, 1);
  EXPECT_EQ(stats.starts, 1);
  EXPECT_EQ(stats.exits, 0) << "rank 2 was stopped before it was started";
  EXPECT_EQ(stats.trainers, 2);
  driver.Handle(driver.Ended(Rank(0), 0));
  driver.Handle(driver.Ended(Rank(1), 0));
  EXPECT_EQ(driver.core().stats().exits, 2);
}

}  // namespace
}  // namespace trainyard::agent
