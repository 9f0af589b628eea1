// The metrics that show slow ranks, silent hosts, the age of checkpoints, and the time that jobs spend in their states.
#include "coordinator/http/rank_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/notice.h"
#include "tests/unit/coordinator/fake_host.h"
#include "tests/unit/coordinator/metric_values.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

using Values = std::map<std::string, double>;

class RankMetricsTest : public ::testing::Test {
 protected:
  Values ValuesOf(const std::string& name, const std::string& label) {
    return trainyard::ValuesOf(registry_.Collect(), name, label);
  }
  double SumOf(const std::string& name) {
    for (const auto& family : registry_.Collect()) {
      if (family.name == name) return family.metric.at(0).histogram.sample_sum;
    }
    return -1;
  }
  void Scrape() { metrics_.ObserveTotals(*harness_.core, harness_.now, harness_.now); }
  // Lets the ranks of the job compute for this time; rank 1 takes twice as long as the others.
  void Train(absl::Duration by) {
    for (absl::Time end = harness_.now + by; harness_.now < end; harness_.Advance(absl::Milliseconds(500))) {
      ++step_;
      RankReportsReceived received{host_.session, {}};
      for (uint32_t rank = 0; rank < 3; ++rank) {
        v1::RankReport& report = *received.reports.add_reports();
        *report.mutable_key() = Key(kJob, 1, rank);
        report.set_phase("train");
        report.set_last_step(step_);
        report.set_micro_batches_made(step_);
        report.set_steps_made(step_);
        report.set_compute_total_s(static_cast<double>(step_) * (rank == 1 ? 0.2 : 0.1));
        report.set_wait_total_s(static_cast<double>(step_) * (rank == 1 ? 0 : 0.1));
      }
      harness_.Handle(std::move(received));
    }
  }
  void BeginJob(uint64_t every_steps) {
    v1::JobSpec spec = MakeSpec(3);
    spec.mutable_train()->set_steps(100'000);
    spec.mutable_checkpoint()->set_every_steps(every_steps);
    host_.Attach();
    ASSERT_TRUE(harness_.Submit(spec, kJob).status.ok());
    BringToRunning(harness_, host_, kJob);
  }
  void Enter(v1::JobState state, int64_t at_ms) {
    auto event = std::make_shared<v1::Event>();
    event->set_time_unix_ms(at_ms);
    event->mutable_state()->set_state(state);
    metrics_.ObserveEffect(JobPublished{JobId(kJob), event});
  }

  prometheus::Registry registry_;
  RankMetrics metrics_{registry_};
  Harness harness_;
  FakeHost host_{harness_, "w1", 4, 11};
  uint64_t step_ = 0;
};

TEST_F(RankMetricsTest, SlowRank_IsVisibleInItsSpeed_AndBecomesAStraggler_UntilTheJobEnds) {
  BeginJob(/*every_steps=*/0);
  Scrape();
  EXPECT_THAT(ValuesOf("trainyard_rank_compute_seconds", "rank"), IsEmpty()) << "no rank has reported its speed yet";
  EXPECT_THAT(ValuesOf("trainyard_job_stragglers", "job_id"), ElementsAre(Pair(kJob, 0)));

  Train(absl::Seconds(60));
  Scrape();

  Values speeds = ValuesOf("trainyard_rank_compute_seconds", "rank");
  ASSERT_EQ(speeds.size(), 3);
  EXPECT_NEAR(speeds["0"], 0.1, 1e-9);
  EXPECT_NEAR(speeds["1"], 0.2, 1e-9);
  EXPECT_NEAR(ValuesOf("trainyard_rank_wait_share", "rank")["0"], 0.5, 1e-9);
  EXPECT_THAT(ValuesOf("trainyard_job_stragglers", "job_id"), ElementsAre(Pair(kJob, 1)));
  EXPECT_THAT(ValuesOf("trainyard_job_ranks", "phase"), ElementsAre(Pair("train", 3)));
  EXPECT_THAT(ValuesOf("trainyard_rank_series_omitted", ""), ElementsAre(Pair("", 0)));

  harness_.Cancel(kJob);
  harness_.Advance(absl::Minutes(2));  // the ranks do not stop within the grace period
  host_.Apply();
  ASSERT_EQ(harness_.StateOf(kJob), v1::JOB_STATE_CANCELLED);
  Scrape();
  for (const char* name : {"trainyard_rank_compute_seconds", "trainyard_rank_wait_share", "trainyard_job_ranks",
                           "trainyard_job_stragglers", "trainyard_job_saved_timestamp_seconds"}) {
    EXPECT_THAT(ValuesOf(name, "job_id"), IsEmpty()) << name;
  }
}

TEST_F(RankMetricsTest, SavedTime_IsThatOfTheNewestCheckpoint_OrOfTheFirstStart_OfAJobThatSaves) {
  BeginJob(/*every_steps=*/10);
  const double started = absl::ToDoubleSeconds(harness_.now - absl::UnixEpoch());
  harness_.Advance(absl::Minutes(5));
  Scrape();
  EXPECT_NEAR(ValuesOf("trainyard_job_saved_timestamp_seconds", "job_id")[kJob], started, 0.001);

  host_.Save(Key(kJob, 1, 0), 10);
  Scrape();
  EXPECT_NEAR(ValuesOf("trainyard_job_saved_timestamp_seconds", "job_id")[kJob], started + 300, 0.001);
}

TEST_F(RankMetricsTest, JobThatSavesOnlyItsLastStep_HasNoCheckpointTime) {
  BeginJob(/*every_steps=*/0);
  Scrape();

  EXPECT_THAT(ValuesOf("trainyard_job_saved_timestamp_seconds", "job_id"), IsEmpty());
}

TEST_F(RankMetricsTest, ContactTime_ExistsOnlyForHostsThatHaveAttachedToThisCoordinator) {
  host_.Attach();
  const double attached = absl::ToDoubleSeconds(harness_.now - absl::UnixEpoch());
  host_.Disconnect();
  harness_.Advance(absl::Seconds(20));
  Scrape();
  EXPECT_NEAR(ValuesOf("trainyard_host_contact_timestamp_seconds", "host")["w1"], attached, 0.001);

  harness_.Restart();
  Scrape();
  EXPECT_THAT(ValuesOf("trainyard_host_contact_timestamp_seconds", "host"), IsEmpty())
      << "a host that may be gone does not look alive after a restart of the coordinator";
}

TEST_F(RankMetricsTest, StatesAndRecoveries_AreMeasuredByTheirEvents) {
  Enter(v1::JOB_STATE_QUEUED, 1'000);
  Enter(v1::JOB_STATE_PLACED, 61'000);
  Enter(v1::JOB_STATE_STARTING, 61'500);
  Enter(v1::JOB_STATE_RUNNING, 65'000);
  EXPECT_THAT(ValuesOf("trainyard_job_state_seconds", "state"),
              UnorderedElementsAre(Pair("queued", 1), Pair("placed", 1), Pair("starting", 1), Pair("recovering", 0),
                                   Pair("stopping", 0)));
  EXPECT_EQ(SumOf("trainyard_job_recovery_seconds"), 0) << "a first start is no recovery";

  Enter(v1::JOB_STATE_RECOVERING, 100'000);
  Enter(v1::JOB_STATE_PLACED, 101'000);
  Enter(v1::JOB_STATE_RECOVERING, 102'000);  // the second group fails, too
  Enter(v1::JOB_STATE_PLACED, 103'000);
  Enter(v1::JOB_STATE_STARTING, 104'000);
  Enter(v1::JOB_STATE_RUNNING, 110'000);

  EXPECT_EQ(SumOf("trainyard_job_recovery_seconds"), 10) << "measured from the first failure";
  EXPECT_EQ(ValuesOf("trainyard_job_recovery_seconds", "")[""], 1);
  Enter(v1::JOB_STATE_RECOVERING, 120'000);
  Enter(v1::JOB_STATE_PLACED, 50'000);
  EXPECT_EQ(ValuesOf("trainyard_job_state_seconds", "state")["recovering"], 2)
      << "a clock that was set back gives no duration";
}

TEST_F(RankMetricsTest, AfterARestartOfTheCoordinator_OnlyStatesThatBeginAfterwardsAreMeasured) {
  Enter(v1::JOB_STATE_STARTING, 5'000);
  Enter(v1::JOB_STATE_RUNNING, 9'000);

  EXPECT_EQ(ValuesOf("trainyard_job_state_seconds", "state")["placed"], 0);
  EXPECT_EQ(ValuesOf("trainyard_job_state_seconds", "state")["starting"], 1);
  EXPECT_EQ(ValuesOf("trainyard_job_recovery_seconds", "")[""], 0);
}

TEST_F(RankMetricsTest, Decisions_AreCountedByRule_AndRulesWithoutDecisionsAreZero) {
  for (const char* rule : {"hang", "hang", "operator", "", "of-a-newer-version"}) {
    auto event = std::make_shared<v1::Event>();
    event->mutable_notice()->set_rule(rule);
    metrics_.ObserveEffect(JobPublished{JobId(kJob), event});
  }

  Values counted = ValuesOf("trainyard_decisions_total", "rule");
  EXPECT_EQ(counted["hang"], 2);
  EXPECT_EQ(counted["operator"], 1);
  EXPECT_EQ(counted["placement"], 0);
  EXPECT_EQ(counted.count("preemption"), 1);
  EXPECT_EQ(counted.size(), static_cast<size_t>(kLastDecisionRule));
  EXPECT_EQ(counted.count(""), 0);
}

}  // namespace
}  // namespace trainyard
