// train.schedule, and the keys that depend on evaluations: what is decided, refused and warned about.
#include "spec/schedule_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "spec/prepare.h"
#include "tests/unit/spec/sample_job.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// kGoodJob, which has 10 steps, with these lines below `train`.
ReadJob ReadWith(const std::string& lines, const std::string& steps = "10") {
  return Read(absl::StrReplaceAll(kGoodJob, {{"  steps: 10", absl::StrCat("  steps: ", steps, "\n  ", lines)}}));
}

struct Decided {
  v1::Schedule schedule;
  std::vector<std::string> reasons;  // of keys of the schedule: "key = value: reason"
};

Decided Decide(const std::string& schedule, const std::string& steps = "10") {
  const auto job = PrepareJob(ReadWith(absl::StrCat("schedule: ", schedule), steps).spec,
                              {.job_id = "abcdefgh", .default_run_root = "/runs"});
  EXPECT_TRUE(job.ok()) << job.status();
  if (!job.ok()) return {};
  Decided decided{.schedule = job->spec.train().schedule(), .reasons = {}};
  for (const v1::ResolvedKey& key : job->decisions) {
    if (key.key().find("schedule") == std::string::npos) continue;
    decided.reasons.push_back(absl::StrCat(key.key(), " = ", key.value(), ": ", key.reason()));
  }
  return decided;
}

TEST(Schedule, WarmupRatio_BecomesSteps_RoundedUpAsInTransformers) {
  EXPECT_EQ(Decide("{warmup_ratio: 0.25}").schedule.warmup_steps(), 3u);
  EXPECT_EQ(Decide("{warmup_ratio: 0.07}", "100").schedule.warmup_steps(), 8u) << "100 * 0.07 = 7.000000000000001";
  EXPECT_EQ(Decide("{warmup_ratio: 0.1}", "30").schedule.warmup_steps(), 3u);
  EXPECT_EQ(Decide("{warmup_ratio: 1}").schedule.warmup_steps(), 10u);
  const Decided decided = Decide("{warmup_ratio: 0.25}");
  EXPECT_EQ(decided.schedule.warmup_ratio(), 0);
  EXPECT_THAT(decided.reasons,
              ElementsAre("train.schedule.warmup_steps = 3: warmup_ratio 0.25 of 10 steps, rounded up"));
}

TEST(Schedule, MinRatio_IsZeroWithTheFormulasOfTransformers) {
  EXPECT_EQ(Decide("{}").schedule.min_ratio(), 0.1);
  EXPECT_THAT(Decide("{}").reasons, IsEmpty());
  EXPECT_EQ(Decide("{formula: transformers}").schedule.min_ratio(), 0);
  EXPECT_THAT(Decide("{formula: transformers}").reasons, ElementsAre(StartsWith("train.schedule.min_ratio = 0: ")));
  EXPECT_EQ(Decide("{formula: transformers, min_ratio: 0.2}").schedule.min_ratio(), 0.2);
}

TEST(Schedule, DecayStepsAndTimescale_AreDecidedForTheirKindOnly) {
  EXPECT_EQ(Decide("{kind: wsd}", "100").schedule.decay_steps(), 20u);
  EXPECT_EQ(Decide("{kind: wsd}", "3").schedule.decay_steps(), 1u);
  EXPECT_EQ(Decide("{kind: wsd, warmup_ratio: 0.9}", "100").schedule.decay_steps(), 10u);
  EXPECT_THAT(Decide("{kind: wsd, warmup_steps: 90}", "100").reasons,
              ElementsAre("train.schedule.decay_steps = 10: the steps that a warm-up of 90 leaves"));
  EXPECT_EQ(Decide("{kind: wsd, decay_steps: 7}").schedule.decay_steps(), 7u);
  EXPECT_EQ(Decide("{kind: inverse_sqrt}").schedule.timescale(), 10'000u);
  EXPECT_EQ(Decide("{kind: inverse_sqrt, warmup_ratio: 0.5}").schedule.timescale(), 5u);
  EXPECT_FALSE(Decide("{kind: linear}").schedule.has_decay_steps());
  EXPECT_FALSE(Decide("{kind: linear}").schedule.has_timescale());
}

TEST(Schedule, DecidedSpec_CanBeSubmittedAgain) {
  for (const char* schedule :
       {"{kind: wsd, warmup_ratio: 0.9}", "{kind: constant}", "{kind: inverse_sqrt, formula: transformers}", "{}"}) {
    const auto first = PrepareJob(ReadWith(absl::StrCat("schedule: ", schedule)).spec,
                                  {.job_id = "abcdefgh", .default_run_root = "/runs"});
    ASSERT_TRUE(first.ok()) << first.status();

    const auto again = PrepareJob(first->spec, {.job_id = "abcdefgh", .default_run_root = "/runs"});

    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->spec.SerializeAsString(), first->spec.SerializeAsString()) << schedule;
  }
}

TEST(Schedule, ContradictoryKeys_AreRefused) {
  EXPECT_THAT(ReadWith("schedule: {warmup_steps: 2, warmup_ratio: 0.1}").Errors(),
              HasSubstr("train.schedule.warmup_ratio: is given together with warmup_steps, 2; give one of them"));
  EXPECT_THAT(
      ReadWith("schedule: {kind: wsd, warmup_steps: 6, decay_steps: 5}").Errors(),
      HasSubstr("train.schedule.decay_steps: with kind wsd the warm-up and the decay must fit into train.steps, "
                "10; found a warm-up of 6 and a decay of 5 = 11"));
  EXPECT_THAT(ReadWith("schedule: {kind: wsd, warmup_steps: 11}").Errors(),
              HasSubstr("train.schedule.warmup_steps: with kind wsd"));
  EXPECT_THAT(ReadWith("schedule: {kind: wsd, decay_steps: 1000000000000, warmup_steps: 1000000000000}").Errors(),
              HasSubstr("= 2000000000000"));
  EXPECT_EQ(ReadWith("schedule: {kind: wsd, warmup_steps: 5, decay_steps: 5}").Errors(), "");
}

TEST(Schedule, KeysOfOtherKinds_CauseAWarning) {
  EXPECT_THAT(ReadWith("schedule: {decay_steps: 3}").Warnings(),
              HasSubstr("train.schedule.decay_steps: has no effect: only kind wsd has it"));
  EXPECT_THAT(ReadWith("schedule: {decay: sqrt}").Warnings(),
              HasSubstr("train.schedule.decay: has no effect: only kind wsd has it"));
  EXPECT_THAT(ReadWith("schedule: {timescale: 3}").Warnings(),
              HasSubstr("train.schedule.timescale: has no effect: only kind inverse_sqrt has it"));
  EXPECT_THAT(ReadWith("schedule: {kind: inverse_sqrt, min_ratio: 0.2}").Warnings(),
              HasSubstr("train.schedule.min_ratio: has no effect"));
  EXPECT_EQ(ReadWith("schedule: {kind: wsd, decay: sqrt, decay_steps: 3, min_ratio: 0.2}").Warnings(), "");
}

TEST(Evaluation, KeysThatNeedEvaluations_AreRefusedWithoutThem) {
  for (const char* key : {"train.evaluate.patience", "checkpoint.keep_best"}) {
    const bool is_patience = std::string(key) == "train.evaluate.patience";
    const auto with = [&](const std::string& interval, const std::string& validation) {
      const std::string lines = is_patience ? absl::StrCat("evaluate: {", interval, "patience: 2}")
                                            : absl::StrCat("evaluate: {", interval, "}");
      return Read(absl::StrReplaceAll(
          kGoodJob, {{"  steps: 10", absl::StrCat("  steps: 10\n  ", lines)},
                     {"text: [corpus]", absl::StrCat("text: [corpus]\n    validation: ", validation)},
                     {"  ranks: 2", is_patience ? "  ranks: 2" : "  ranks: 2\ncheckpoint: {keep_best: true}"}}));
    };

    EXPECT_THAT(
        with("", "0.1").Errors(),
        HasSubstr(absl::StrCat(key, ": needs evaluations; expected train.evaluate.every_steps above 0, found 0")));
    EXPECT_THAT(with("every_steps: 5, ", "0").Errors(),
                HasSubstr(absl::StrCat(key, ": needs data to evaluate on; expected train.data.validation above 0")));
    EXPECT_EQ(with("every_steps: 5, ", "0.1").Errors(), "");
  }
  EXPECT_THAT(ReadWith("evaluate: {every_steps: 5, min_delta: 0.1}").Warnings(),
              HasSubstr("train.evaluate.min_delta: has no effect: train.evaluate.patience is 0"));
}

}  // namespace
}  // namespace trainyard
