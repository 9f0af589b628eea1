// When a rank alone saves, what it leaves behind where nobody answers, and whose work it goes on from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/unit/trainer/fake_link.h"
#include "tests/unit/trainer/small_job.h"
#include "worker/checkpoint/catalog.h"
#include "worker/checkpoint/reader.h"
#include "worker/trainer/run.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class SavesTest : public SmallJobTest {
 protected:
  StartOrder Order(const std::string& run, uint64_t steps) {
    StartOrder order = SmallOrder(run, steps);
    order.config.batch_global = 4;
    order.config.batch_micro = 2;
    return order;
  }
  ExitCode Run(const StartOrder& order, FakeLink& link, bool leave = false) {
    log_.str("");
    return RunRank(order, {.link = link, .file_system = FileSystem::Real(), .log = log_, .told_to_leave = [leave] {
                             return leave;
                           }});
  }

  std::ostringstream log_;
};

TEST_F(SavesTest, EveryStep_IsSavedWhereThatIsAskedFor) {
  for (uint64_t steps : {1, 3}) {
    FakeLink link;
    StartOrder order = Order(absl::StrCat("run", steps), steps);
    order.config.checkpoint_every = 1;
    order.config.checkpoint_keep = 0;

    ASSERT_EQ(Run(order, link), kExitDone) << log_.str();

    EXPECT_THAT(*ListCheckpoints(folder_ / absl::StrCat("run", steps)), SizeIs(steps));
    EXPECT_THAT(link.FactsOf<SavedFact>(), SizeIs(steps));
    EXPECT_THAT(log_.str(), HasSubstr("saved step 1 in "));
  }
}

// A pause that the coordinator asked for, and then went away: the checkpoint is complete, and found by whoever is next.
TEST_F(SavesTest, LeavingWithoutTheCoordinatorsWord_LeavesACompletePartial) {
  FakeLink away;
  away.set_answer_grant([](auto, auto, auto) { return absl::DeadlineExceededError("no word"); });

  ASSERT_EQ(Run(Order("run", 20), away, /*leave=*/true), kExitDone) << log_.str();

  const uint64_t step = away.FactsOf<FinishedFact>().at(0).step;
  EXPECT_THAT(*ListCheckpoints(folder_ / "run"), SizeIs(0));
  EXPECT_EQ(away.FactsOf<SaveReadyFact>().at(0).step, step);
  EXPECT_TRUE(Checkpoint::Open(folder_ / absl::StrCat("run/", StepFolderName(step), ".g1.partial")).ok());
}

// A later generation goes on by itself, and nobody has said that it may from another job's work.
TEST_F(SavesTest, WhatAnotherJobLeftMeanwhile_IsNotGoneOnFromUnasked) {
  FakeLink other, own, asked;
  ASSERT_EQ(Run(Order("run", 2), other), kExitDone);
  StartOrder order = Order("run", 4);
  order.job_id = "bcdefghi";
  order.generation = 2;

  EXPECT_EQ(Run(order, own), kExitRefused);
  EXPECT_THAT(own.FactsOf<RefusedFact>().at(0).message, HasSubstr("holds checkpoints of job abcdefgh"));

  order.resume = true;
  EXPECT_EQ(Run(order, asked), kExitDone) << log_.str();
  EXPECT_EQ(asked.FactsOf<RestoredFact>().at(0).step, 2u);
}

}  // namespace
}  // namespace trainyard
