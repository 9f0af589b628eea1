// What trainctl prints about the saves of a job, and which events end its wait for a requested save.
#include "client/checkpoint_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/checkpoint_view.h"
#include "client/job_calls.h"

namespace trainyard::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(CheckpointView, NonFiniteCheckpoint_IsNotGood) {
  InspectedEntry one{.entry = {.name = "step-00000007"}, .verified = true};
  one.found.manifest = Manifest{};
  EXPECT_TRUE(IsGood(one));
  EXPECT_THAT(VerdictText(one), HasSubstr("step-00000007: good"));

  one.found.manifest->nonfinite = {"parameter 'wte.weight'"};

  EXPECT_FALSE(IsGood(one));
  EXPECT_THAT(VerdictText(one), HasSubstr("NOT FINITE"));
  EXPECT_THAT(VerdictText(one), HasSubstr("parameter 'wte.weight'"));
}

TEST(CheckpointView, CheckpointThatCannotBeRead_IsNotCalledDamaged) {
  InspectedEntry one{.entry = {.name = "step-00000007"}, .verified = true};
  one.found.manifest = Manifest{};
  one.found.problems = {{.file = "f", .failed_read = absl::UnknownError("cannot read /r/f: Input/output error")}};

  EXPECT_FALSE(IsGood(one));
  EXPECT_THAT(VerdictText(one),
              HasSubstr("step-00000007: CANNOT BE READ, and may be good, 1 problem\n  cannot read /r/f"));
  EXPECT_THAT(InspectedEntryJson(one), HasSubstr("\"state\":\"unreadable\""));
}

constexpr absl::Time kNow = absl::FromUnixSeconds(1'700'000'100);

v1::Job JobWithSaves() {
  v1::Job job;
  job.set_job_id("k3x7q2ab");
  job.set_last_step(57);
  for (uint64_t step : {20, 40}) {
    v1::CheckpointInfo& info = *job.add_checkpoints();
    info.set_step(step);
    info.set_generation(2);
    info.set_path("/runs/a/step-" + std::to_string(step));
    info.set_manifest_hash("0123456789abcdef");
    info.set_size_bytes(3 << 20);
    info.set_recorded_unix_ms(1'700'000'000'000);
  }
  job.mutable_checkpoints(1)->set_unconfirmed(true);
  return job;
}

v1::Event Saved(uint64_t sequence, uint64_t step) {
  v1::Event event;
  event.set_sequence(sequence);
  event.mutable_checkpoint()->set_step(step);
  return event;
}

v1::Event Failed(uint64_t sequence, uint64_t step) {
  v1::Event event;
  event.set_sequence(sequence);
  event.mutable_notice()->set_failed_save_step(step);
  return event;
}

TEST(CheckpointJob, Table_IsNewestFirst_AndMarksUnconfirmedNames) {
  std::string table = JobCheckpointTable(JobWithSaves(), kNow);

  EXPECT_THAT(table, HasSubstr("40    2           3.0 MiB  1m40s  granted  0123456789ab  /runs/a/step-40"));
  EXPECT_LT(table.find("step-40"), table.find("step-20"));
  EXPECT_THAT(JobCheckpointTable(v1::Job(), kNow), HasSubstr("has saved nothing yet"));
  EXPECT_THAT(JobCheckpointView(JobWithSaves().checkpoints(1), kNow), HasSubstr("not yet confirmed"));
  EXPECT_THAT(JobCheckpointView(JobWithSaves().checkpoints(0), kNow), Not(HasSubstr("confirmed")));
}

TEST(CheckpointJob, ChosenSteps_AreKept_AndAMissingOneIsNamed) {
  v1::Job all = JobWithSaves(), one = JobWithSaves(), none = JobWithSaves();

  ASSERT_TRUE(KeepSteps({}, all).ok());
  ASSERT_TRUE(KeepSteps({20}, one).ok());
  const absl::Status missing = KeepSteps({20, 7}, none);

  EXPECT_EQ(all.checkpoints_size(), 2);
  ASSERT_EQ(one.checkpoints_size(), 1);
  EXPECT_EQ(one.checkpoints(0).step(), 20);
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("has no checkpoint of step 7; saved steps: 20, 40"));
}

TEST(CheckpointJob, NewestConfirmed_SkipsGrantedCheckpoints) {
  v1::Job job = JobWithSaves();
  ASSERT_NE(NewestConfirmed(job), nullptr);
  EXPECT_EQ(NewestConfirmed(job)->step(), 20u);
  job.clear_checkpoints();
  EXPECT_EQ(NewestConfirmed(job), nullptr);
}

TEST(CheckpointJob, Wait_EndsWithASaveNotOlderThanTheRequest) {
  using Result = AwaitedSave::Result;
  const AwaitedSave awaited(JobWithSaves(), /*last_sequence=*/9);

  EXPECT_EQ(awaited.Classify(Saved(8, 60)), Result::kNone) << "recorded before the request";
  EXPECT_EQ(awaited.Classify(Saved(10, 56)), Result::kNone) << "in progress at the time of the request";
  EXPECT_EQ(awaited.Classify(Saved(11, 57)), Result::kSaved);
  EXPECT_EQ(awaited.Classify(Failed(10, 56)), Result::kNone);
  EXPECT_EQ(awaited.Classify(Failed(11, 58)), Result::kFailed);
  EXPECT_EQ(awaited.Classify(Failed(12, 0)), Result::kNone) << "an unrelated notice";
  v1::Event later = Saved(13, 41), notice = Failed(14, 0);
  later.set_generation(1);
  notice.set_generation(1);
  EXPECT_EQ(awaited.Classify(later), Result::kSaved) << "a save of the next group, which has repeated steps";
  EXPECT_EQ(awaited.Classify(notice), Result::kNone);

  v1::Job repeating = JobWithSaves();
  repeating.add_ranks()->set_last_step(45);
  EXPECT_EQ(AwaitedSave(repeating, 9).Classify(Saved(10, 46)), Result::kSaved) << "the group repeats steps";
}

}  // namespace
}  // namespace trainyard::client
