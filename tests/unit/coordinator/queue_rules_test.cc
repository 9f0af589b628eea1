// The configuration of the queue, what submissions it refuses, and its forecasts.
#include "coordinator/policy/queue_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/strict_yaml.h"
#include "coordinator/policy/forecast.h"
#include "tests/unit/coordinator/queue_jobs.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

TEST(Submission, JobThatCanNeverStart_IsRefusedWithAllProblems) {
  QueueRules rules;
  rules.only_listed = false;
  rules.namespaces["a"].max_slots = 4;
  rules.namespaces["a"].max_gpus = 2;
  rules.namespaces["a"].max_priority = 60;

  const absl::Status status = CheckSubmission(rules, {.name = "a", .priority = 90, .min_ranks = 8, .needs_gpu = true});

  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("priority 90 is above 60"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs 8 slots, and namespace a may use 4"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs 8 GPUs, and namespace a may use 2"));
}

TEST(Submission, BeyondTheLimitsOfWaitingJobs_IsRefused) {
  QueueRules rules;
  rules.max_queued = 10;
  rules.namespaces["a"].max_queued = 2;
  EXPECT_TRUE(CheckSubmission(rules, {.name = "a", .queued = 9, .queued_in_pool = 1}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(CheckSubmission(rules, {.name = "b", .queued = 10})));
  EXPECT_TRUE(absl::IsResourceExhausted(CheckSubmission(rules, {.name = "a", .queued = 9, .queued_in_pool = 2})));
  EXPECT_TRUE(absl::IsResourceExhausted(
      CheckSubmission(rules, {.name = "b", .is_new_namespace = true, .namespaces = kNamespacesMax})));
}

TEST(Submission, UnlistedNamespaces_ShareTheEntryForAllOthers) {
  QueueRules rules;
  EXPECT_EQ(PoolOf(rules, "x"), "x");
  rules.namespaces["*"].max_slots = 2;
  rules.namespaces["a"];
  EXPECT_EQ(PoolOf(rules, "x"), "*");
  EXPECT_EQ(PoolOf(rules, "y"), "*");
  EXPECT_EQ(PoolOf(rules, "a"), "a");
  EXPECT_FALSE(CheckSubmission(rules, {.name = "x", .min_ranks = 3}).ok());
}

std::string ProblemsOf(const std::string& yaml) {
  v1::CoordinatorConfig config;
  Problems problems;
  ReadYaml({.text = yaml, .file_name = "c.yaml", .working_directory = "/"}, &config, &problems);
  ApplyDefaults(&config);
  CheckRules(config, {}, &problems);
  CheckQueueConfig(config.queue(), &problems);
  return std::string(problems.ToStatus().message());
}

TEST(QueueConfig, IsReadWithItsDefaults) {
  v1::CoordinatorConfig config;
  Problems problems;
  ReadYaml({.text = "queue: {namespaces: [{name: a, weight: 2.5, max_slots: 4}, {name: \"*\"}]}",
            .file_name = "c.yaml",
            .working_directory = "/"},
           &config, &problems);
  ApplyDefaults(&config);
  CheckQueueConfig(config.queue(), &problems);
  ASSERT_TRUE(problems.ok()) << problems.ToStatus();

  const QueueRules rules = MakeQueueRules(config.queue());

  EXPECT_EQ(rules.namespaces.at("a").weight_milli, 2'500u);
  EXPECT_EQ(rules.namespaces.at("a").max_slots, 4u);
  EXPECT_FALSE(rules.namespaces.at("*").max_slots.has_value());
  EXPECT_EQ(rules.namespaces.at("*").max_priority, 100u);
  EXPECT_TRUE(rules.namespaces.at("*").preempts);
  EXPECT_FALSE(rules.preemption);
  EXPECT_EQ(rules.overtake, absl::Minutes(10));
}

TEST(QueueConfig, AllProblemsAreReportedTogether) {
  const std::string problems = ProblemsOf(
      "queue:\n  only_listed: true\n  overtake_s: -1\n  namespaces:\n    - {name: A b}\n    - {name: a, weight: 0}\n"
      "    - {name: a, wieght: 1}\n    - {name: \"*\"}\n    - {max_slots: 1}\n    - 7\n"
      "  preemption: {min_priority_difference: 0}\n");

  EXPECT_THAT(problems, HasSubstr("queue.overtake_s: must be from 0"));
  EXPECT_THAT(problems, HasSubstr("queue.namespaces[0].name: must consist of"));
  EXPECT_THAT(problems, HasSubstr("queue.namespaces[1].weight: must be from 0.001"));
  EXPECT_THAT(problems, HasSubstr("did you mean 'weight'"));
  EXPECT_THAT(problems, HasSubstr("names 'a' a second time"));
  EXPECT_THAT(problems, HasSubstr("queue.only_listed"));
  EXPECT_THAT(problems, HasSubstr("queue.namespaces[4].name: is required"));
  EXPECT_THAT(problems, HasSubstr("queue.namespaces[5]: expected a map"));
  EXPECT_THAT(problems, HasSubstr("queue.preemption.min_priority_difference: must be from 1"));
}

// ---- forecasts ------------------------------------------------------------------------------------------------------

TEST(ForecastOfQueue, FollowsTheKnownEndsOfJobs_InTheOrderOfTheQueue) {
  QueueRules rules;
  std::vector<HostSlots> hosts = {MakeHost("h1", 4, 0)};
  const WaitingJob first = MakeWaiting(1, 2), second = MakeWaiting(2, 4), third = MakeWaiting(3, 1);
  ForecastFacts facts{.rules = &rules, .hosts = hosts, .use = {}, .running = {}, .waiting = {}};
  for (const auto& [id, seconds] : {std::pair("a", 10), std::pair("b", 60)}) {
    EndingJob& ending = facts.running.emplace_back();
    ending.id = JobId(id);
    ending.pool = "default";
    ending.ranks = {{H("h1"), 2}};
    ending.ends_in = absl::Seconds(seconds);
  }
  facts.waiting = {{.job = &first, .lasts = absl::Seconds(100)},
                   {.job = &second, .lasts = std::nullopt},
                   {.job = &third, .lasts = absl::Seconds(1)}};

  const std::vector<Forecast> forecasts = MakeForecasts(facts);

  ASSERT_EQ(forecasts.size(), 3u);
  EXPECT_EQ(forecasts[0].start_in, absl::Seconds(10));
  EXPECT_EQ(forecasts[0].text, "when job a ends");
  EXPECT_EQ(forecasts[1].start_in, absl::Seconds(110));
  EXPECT_EQ(forecasts[2].start_in, absl::Seconds(60));
}

// Regression: the slots that were kept for the job counted as used by another job, and its ranks counted twice against
// the quota.
TEST(ForecastOfQueue, AJobThatStartsAgain_UsesItsKeptSlots_AndCountsOnce) {
  QueueRules rules;
  rules.namespaces["a"].max_slots = 2;
  std::vector<HostSlots> hosts = {MakeHost("h1", 2, 0)};
  WaitingJob again = MakeWaiting(1, 2, 50, "a");
  again.continues = true;
  again.kept = {{H("h1"), 2}};
  again.had_ranks = 2;
  again.placement.previous = {H("h1"), H("h1")};
  const WaitingJob next = MakeWaiting(2, 2, 50, "a");
  ForecastFacts facts{.rules = &rules, .hosts = hosts, .use = {}, .running = {}, .waiting = {}};
  facts.use["a"] = {.slots = 2, .gpus = 0, .running = 1};
  facts.waiting = {{.job = &again, .lasts = absl::Seconds(100)}, {.job = &next, .lasts = std::nullopt}};

  const std::vector<Forecast> forecasts = MakeForecasts(facts);

  EXPECT_EQ(forecasts[0].start_in, absl::ZeroDuration()) << forecasts[0].text;
  EXPECT_EQ(forecasts[1].start_in, absl::Seconds(100)) << forecasts[1].text;
}

TEST(ForecastOfQueue, IsUnknown_WithTheReason) {
  QueueRules rules;
  rules.namespaces["small"].max_slots = 1;
  std::vector<HostSlots> hosts = {MakeHost("h1", 2, 0)};
  const WaitingJob first = MakeWaiting(1, 2), large = MakeWaiting(2, 9), never = MakeWaiting(3, 2, 50, "small");
  ForecastFacts facts{.rules = &rules, .hosts = hosts, .use = {}, .running = {}, .waiting = {}};
  facts.running = {{.id = JobId("a"),
                    .pool = "default",
                    .ranks = {{H("h1"), 2}},
                    .ends_in = std::nullopt,
                    .why_unknown = "job a has made no step yet"}};
  facts.waiting = {{.job = &first, .lasts = std::nullopt},
                   {.job = &large, .lasts = std::nullopt},
                   {.job = &never, .lasts = std::nullopt, .never = true}};

  const std::vector<Forecast> forecasts = MakeForecasts(facts);

  EXPECT_EQ(forecasts[0].text, "unknown: job a has made no step yet");
  EXPECT_THAT(forecasts[1].text, HasSubstr("attached hosts are not enough"));
  EXPECT_THAT(forecasts[2].text, HasSubstr("never"));
}

}  // namespace

}  // namespace trainyard
