// What CheckSchedule refuses, with the messages. In them, F1 is the forward of micro-batch 1, B1 its backward, and I1
// and W1 are the two parts of a divided backward; with several chunks, F0.5 is micro-batch 5 in chunk 0.
#include "plan/schedule_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace trainyard {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr PipelineAction::Kind kForward = PipelineAction::kForward;
constexpr PipelineAction::Kind kBackward = PipelineAction::kBackward;

PipelineSchedule Of(ScheduleKind kind, const PipelineShape& shape) { return *MakeSchedule(kind, shape); }

std::string Refusal(const PipelineSchedule& schedule, int slots = kSlotsPerLink) {
  return std::string(CheckSchedule(schedule, slots).message());
}

TEST(CheckSchedule, MissingDuplicateAndUnknownActionsAreReportedTogetherWithTheLists) {
  PipelineSchedule schedule = Of(ScheduleKind::kOneForwardOneBackward, {.stages = 2, .micro_batches = 2});
  schedule.ranks[0].pop_back();
  schedule.ranks[1].push_back({kForward, 0, 1});
  schedule.ranks[1].push_back({kBackward, 0, 7});

  EXPECT_EQ(Refusal(schedule),
            "the pipeline schedule cannot run:\n"
            "rank 0 lacks B1\n"
            "rank 1 has F1 more than once\n"
            "rank 1 has B7, which does not exist: each rank has 1 chunk and 2 micro-batches, counted from 0\n"
            "rank 0: F0 F1 B0\n"
            "rank 1: F0 B0 F1 B1 F1 B7\n");
}

TEST(CheckSchedule, ABackwardBeforeItsForwardIsRefused) {
  PipelineSchedule schedule = Of(ScheduleKind::kGpipe, {.stages = 2, .micro_batches = 2});
  std::swap(schedule.ranks[1][1], schedule.ranks[1][2]);

  EXPECT_THAT(Refusal(schedule), HasSubstr("rank 1 has B1 before F1"));
}

TEST(CheckSchedule, WBeforeIAndAMixtureOfBWithIAreRefused) {
  PipelineSchedule schedule = Of(ScheduleKind::kZeroBubble, {.stages = 2, .micro_batches = 1});
  std::swap(schedule.ranks[0][1], schedule.ranks[0][2]);
  schedule.ranks[1][2].kind = kBackward;

  EXPECT_THAT(Refusal(schedule), AllOf(HasSubstr("rank 0 has W0 before I0"),
                                       HasSubstr("rank 1 has both B0 and I0; a backward is either B, or I and W")));
}

TEST(CheckSchedule, ALinkCannotDeliverInAnotherOrderThanThatOfTheSends) {
  PipelineSchedule schedule = Of(ScheduleKind::kGpipe, {.stages = 2, .micro_batches = 3});
  std::swap(schedule.ranks[1][0], schedule.ranks[1][1]);

  EXPECT_THAT(
      Refusal(schedule),
      HasSubstr("rank 1 receives out of order: the next packet of activations from rank 0 is that of F0, but F1 "
                "of rank 1 needs that of F1 first; a link delivers packets in the order of the sends"));
}

TEST(CheckSchedule, RanksThatWaitForEachOthersOutputAreNamed) {
  PipelineSchedule schedule = Of(ScheduleKind::kOneForwardOneBackward, {.stages = 2, .micro_batches = 2});
  // Rank 1 wants F1 before it computes B0, and rank 0 wants B0 before it computes F1.
  schedule.ranks[0] = {{kForward, 0, 0}, {kBackward, 0, 0}, {kForward, 0, 1}, {kBackward, 0, 1}};
  schedule.ranks[1] = {{kForward, 0, 0}, {kForward, 0, 1}, {kBackward, 0, 0}, {kBackward, 0, 1}};

  EXPECT_EQ(Refusal(schedule),
            "the pipeline schedule cannot run:\n"
            "deadlock with 2 slots per link: rank 0 waits in B0 for B0 of rank 1; rank 1 waits in F1 for F1 of rank 0\n"
            "rank 0: F0 B0 F1 B1\n"
            "rank 1: F0 F1 B0 B1\n");
}

TEST(CheckSchedule, ADeadlockForLackOfFreeSlotsDependsOnTheirNumber) {
  // All chunks breadth first: rank 1 sends 8 activations back to rank 0, which receives none of them before its second
  // chunk.
  const PipelineShape shape{.stages = 2, .chunks_per_rank = 2, .micro_batches = 8};
  PipelineSchedule schedule{.shape = shape, .ranks = {{}, {}}};
  for (std::vector<PipelineAction>& list : schedule.ranks) {
    for (const int chunk : {0, 1}) {
      for (int m = 0; m < 8; ++m) list.push_back({kForward, chunk, m});
    }
    for (const int chunk : {1, 0}) {
      for (int m = 0; m < 8; ++m) list.push_back({kBackward, chunk, m});
    }
  }

  EXPECT_THAT(
      Refusal(schedule, 2),
      HasSubstr(
          "deadlock with 2 slots per link: rank 0 waits in F0.5 for a free slot to send to rank 1, which must "
          "begin F0.3 first; rank 1 waits in F0.2 for a free slot to send to rank 0, which must begin F1.0 first"));
  EXPECT_TRUE(CheckSchedule(schedule, 4).ok()) << CheckSchedule(schedule, 4);
}

TEST(CheckSchedule, ChunksOfOneRankPassTheirBoundaryWithoutALink) {
  PipelineSchedule schedule = Of(ScheduleKind::kInterleaved, {.stages = 1, .chunks_per_rank = 2, .micro_batches = 1});
  EXPECT_TRUE(CheckSchedule(schedule, 1).ok());

  std::swap(schedule.ranks[0][0], schedule.ranks[0][1]);

  EXPECT_THAT(Refusal(schedule), HasSubstr("rank 0 waits in F1.0 for F0.0 of rank 0"));
}

TEST(CheckSchedule, LongListsAreShortened) {
  PipelineSchedule schedule = Of(ScheduleKind::kGpipe, {.stages = 20, .micro_batches = 100});
  for (std::vector<PipelineAction>& list : schedule.ranks) list.pop_back();

  const std::string refusal = Refusal(schedule);

  EXPECT_THAT(refusal, AllOf(HasSubstr("rank 9 lacks B0\nand 10 more problems\n"), HasSubstr("F31 and 167 more\n"),
                             HasSubstr("and 4 more ranks\n"), Not(HasSubstr("rank 16:"))));
}

TEST(CheckSchedule, SizesThatDoNotFitAreRefused) {
  EXPECT_THAT(Refusal({.shape = {.stages = 0, .micro_batches = 1 << 30}, .ranks = {}}, 0),
              AllOf(HasSubstr("stages is 0; it must be 1 to 1024"), HasSubstr("micro_batches is 1073741824"),
                    HasSubstr("slots_per_link is 0; it must be 1 or more")));
  EXPECT_THAT(Refusal({.shape = {.stages = 2}, .ranks = {{}}}),
              HasSubstr("there are lists for 1 rank; expected 2, one for each stage"));
}

}  // namespace
}  // namespace trainyard
