// policy/hang when ranks wait in channels: which stage of a pipeline is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/hang_facts.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Act = HangDecision::Act;

// The stages of a pipeline: rank r sends activations to rank r + 1, and gradients travel back.
class PipelineHangTest : public HangTest {
 protected:
  PipelineHangTest() {
    for (int i = 0; i < 3; ++i) AddRank();
    SetLearned(Phase::kTrain, 0.1);
  }

  static std::string Activations(uint32_t from) { return absl::StrCat("activations ", from, "->", from + 1); }
  static std::string Gradients(uint32_t to) { return absl::StrCat("gradients ", to + 1, "->", to); }

  // The rank has begun `started` packets at its end of the channel, and completed them.
  v1::CommunicatorReport& Channel(uint32_t rank, const std::string& name, uint64_t started) {
    v1::CommunicatorReport& report = facts_.ranks[rank].communicators.emplace_back();
    report.set_name(name);
    report.set_started(started);
    report.set_completed(started);
    report.set_last_started(absl::StrCat("packet ", started, " (chunk 0, micro-batch ", started % 8, ")"));
    return report;
  }
  // The rank waits for this packet.
  void Receives(uint32_t rank, const std::string& name, uint64_t number) {
    v1::CommunicatorReport& report = Channel(rank, name, number);
    report.set_completed(number - 1);
    report.set_waits_in(absl::StrCat("receive ", number, " (chunk 0, micro-batch ", number % 8, ")"));
  }
  // The rank waits in this operation of a group, and has started `started` operations of it.
  void Sums(uint32_t rank, const std::string& name, uint64_t number, uint64_t started) {
    v1::CommunicatorReport& report = Channel(rank, name, started);
    report.set_completed(number - 1);
    report.set_last_started(Operation(started));
    report.set_waits_in(Operation(number));
  }
  void WaitsForRoom(uint32_t rank, const std::string& name, uint64_t number) {
    v1::CommunicatorReport& report = Channel(rank, name, number);
    report.set_completed(number - 1);
    report.set_waits_in(absl::StrCat("room for packet ", number, " (chunk 0, micro-batch ", number % 8, ")"));
  }
};

TEST_F(PipelineHangTest, StoppedSender_IsNamed_WithTheReceiverThatWaits) {
  facts_.ranks.pop_back();
  Channel(0, Activations(0), 16);
  Receives(1, Activations(0), 17);
  facts_.ranks[0].process_state = "T";

  HangDecision decided = DecideAfter(absl::Seconds(3));

  EXPECT_EQ(decided.act, Act::kRestart);
  EXPECT_THAT(decided.culprits, ElementsAre(0));
  EXPECT_THAT(decided.reason,
              HasSubstr("rank 0 on w1 is stopped (SIGSTOP, state T); rank 1 on w2 waits in receive 17 (chunk 0, "
                        "micro-batch 1) of activations 0->1 in step 37; no progress for 3.0 s"));
}

TEST_F(PipelineHangTest, SilentSender_IsNamed) {
  facts_.ranks.pop_back();
  Channel(0, Activations(0), 16);
  Receives(1, Activations(0), 17);
  facts_.ranks[0].silent = true;

  HangDecision decided = DecideAfter(absl::Seconds(3));

  EXPECT_EQ(decided.act, Act::kRestart);
  EXPECT_THAT(decided.culprits, ElementsAre(0));
  EXPECT_THAT(decided.reason, HasSubstr("rank 0 on w1 has sent no report for 3.0 s; rank 1 on w2 waits in receive 17"));
}

// Rank 2 waits for rank 1, which waits for rank 0. The packet that rank 2 waits for has a higher number than the packet
// that rank 1 waits for.
TEST_F(PipelineHangTest, StoppedFirstStage_IsNamed_AndNotAStageThatWaitsForIt) {
  Channel(0, Activations(0), 16);
  Receives(1, Activations(0), 17);
  Channel(1, Activations(1), 40);
  Receives(2, Activations(1), 41);
  facts_.ranks[0].process_state = "T";

  HangDecision decided = DecideAfter(absl::Seconds(3));

  EXPECT_THAT(decided.culprits, ElementsAre(0));
  EXPECT_THAT(decided.reason, HasSubstr("rank 0 on w1 is stopped (SIGSTOP, state T); rank 1 on w2 waits in receive 17 "
                                        "(chunk 0, micro-batch 1) of activations 0->1 in step 37, and 1 other rank "
                                        "waits too"));
}

TEST_F(PipelineHangTest, StageThatComputesForever_IsNamed_AfterTheLimit) {
  Channel(0, Activations(0), 16);
  Receives(1, Activations(0), 17);
  Channel(1, Activations(1), 16);
  Receives(2, Activations(1), 17);

  EXPECT_EQ(DecideAfter(absl::Seconds(4.9)).act, Act::kExamine);
  EXPECT_THAT(DecideAfter(absl::Seconds(4.9)).culprits, ElementsAre(0));
  EXPECT_EQ(DecideAfter(absl::Seconds(5)).act, Act::kRestart);
}

TEST_F(PipelineHangTest, SenderThatIsTwoPacketsAhead_WaitsForAFreeSlot_AndTheReceiverIsNamed) {
  facts_.ranks.pop_back();
  WaitsForRoom(0, Activations(0), 19);
  Channel(1, Activations(0), 16);

  HangDecision decided = DecideAfter(absl::Seconds(6));

  EXPECT_THAT(decided.culprits, ElementsAre(1));
  EXPECT_THAT(decided.reason, HasSubstr("rank 1 on w2 makes no progress; rank 0 on w1 waits for room for packet 19 "
                                        "(chunk 0, micro-batch 3) of activations 0->1 in step 37"));
}

// Rank 0 waits for the gradients of rank 1, to which it has sent two packets more than rank 1 has received.
TEST_F(PipelineHangTest, SenderThatIsAhead_DoesNotCountAsBehind) {
  facts_.ranks.pop_back();
  Channel(0, Activations(0), 18);
  Receives(0, Gradients(0), 15);
  Channel(1, Activations(0), 16);
  Channel(1, Gradients(0), 14);

  EXPECT_THAT(DecideAfter(absl::Seconds(6)).culprits, ElementsAre(1));
}

// All stages wait. Rank 2 has left out an operation of the group of ranks 2 and 3, and rank 1 waits for the packet that
// rank 2 sends after this operation.
TEST_F(PipelineHangTest, StageThatLeftOutAnOperation_IsNamedAtTheEndOfTheChain) {
  WaitsForRoom(0, Activations(0), 19);
  Channel(1, Activations(0), 16);
  Receives(1, Gradients(1), 15);
  Channel(2, Gradients(1), 14);
  Sums(2, "data of ranks 2-3", 9, 9);
  AddRank();
  Sums(3, "data of ranks 2-3", 9, 10);

  HangDecision decided = DecideAfter(absl::Seconds(31));

  EXPECT_THAT(decided.culprits, ElementsAre(2));
  EXPECT_THAT(decided.reason, HasSubstr("rank 2 on w3 waits in all-reduce 9 (8 x fp64); rank 1 on w2 waits in receive "
                                        "15 (chunk 0, micro-batch 7) of gradients 2->1"));
}

// The hosts of ranks 2 and 3 cannot exchange data. The other ranks wait for these two, which have done their part.
TEST_F(PipelineHangTest, RanksThatAreAllInsideASum_AreNotBlamedForThoseThatWaitForThem) {
  WaitsForRoom(0, Activations(0), 19);
  Channel(1, Activations(0), 16);
  Receives(1, Gradients(1), 15);
  Channel(2, Gradients(1), 14);
  Sums(2, "data of ranks 2-3", 9, 9);
  AddRank();
  Sums(3, "data of ranks 2-3", 9, 9);

  EXPECT_EQ(DecideAfter(absl::Seconds(29)).act, Act::kExamine) << "a lossy network may still deliver the data";
  HangDecision decided = DecideAfter(absl::Seconds(31));

  EXPECT_EQ(decided.act, Act::kRestart);
  EXPECT_THAT(decided.culprits, IsEmpty());
  EXPECT_THAT(
      decided.reason,
      HasSubstr("ranks 2 on w3, 3 on w4 are inside all-reduce 9 (8 x fp64) of 'data of ranks 2-3' in step 37, and "
                "none of them is stopped: data between w3 and w4 does not arrive over the network; 2 other ranks "
                "wait for them"));
}

// Rank 0 and rank 1 have finished their own sum, and wait for all ranks.
TEST_F(PipelineHangTest, TwoGroupsThatAreCut_AreBothNamed) {
  for (int i = 0; i < 3; ++i) AddRank();
  for (uint32_t rank : {0, 1}) Sums(rank, "world", 7, 7);
  for (uint32_t rank : {2, 3, 4, 5}) Channel(rank, "world", 6);
  for (uint32_t rank : {2, 4}) Sums(rank, "data of ranks 2-4 by 2", 9, 9);
  for (uint32_t rank : {3, 5}) Sums(rank, "data of ranks 3-5 by 2", 9, 9);

  HangDecision decided = DecideAfter(absl::Seconds(31));

  EXPECT_THAT(decided.culprits, IsEmpty());
  EXPECT_THAT(decided.reason,
              HasSubstr("ranks 2 on w3, 4 on w5 are inside all-reduce 9 (8 x fp64) of 'data of ranks 2-4 by 2'"));
  EXPECT_THAT(decided.reason,
              HasSubstr("data between w3 and w5 does not arrive over the network; ranks 3 on w4, 5 on w6"));
}

// One group is cut by the network, and in another group rank 1 has left out an operation.
TEST_F(PipelineHangTest, RankThatLeftOutAnOperation_IsNamed_AlsoWhileAGroupIsCut) {
  for (int i = 0; i < 2; ++i) AddRank();
  Sums(0, "data of ranks 0-1", 9, 10);
  Sums(1, "data of ranks 0-1", 9, 9);
  for (uint32_t rank : {2, 3}) Sums(rank, "data of ranks 2-3", 9, 9);
  for (uint32_t rank : {0, 1, 2, 3}) Channel(rank, "world", 6);
  Sums(4, "world", 7, 7);

  HangDecision decided = DecideAfter(absl::Seconds(31));

  EXPECT_THAT(decided.culprits, ElementsAre(1));
}

// The members of a group have entered different operations under the same number, and the other ranks wait for them.
TEST_F(PipelineHangTest, RankInAnotherOperationOfItsGroup_IsNamed) {
  for (int i = 0; i < 2; ++i) AddRank();
  for (uint32_t rank : {0, 1, 2}) Channel(rank, "world", 6);
  for (uint32_t rank : {0, 1, 2}) Sums(rank, "data of ranks 0-2", 9, 9);
  facts_.ranks[1].communicators.back().set_last_started(Operation(9, "4096 x fp32"));
  for (uint32_t rank : {3, 4}) Sums(rank, "world", 7, 7);

  EXPECT_THAT(DecideAfter(absl::Seconds(6)).culprits, ElementsAre(1));
}

TEST_F(PipelineHangTest, RanksThatWaitForEachOther_AreListed_AndNoneIsBlamed) {
  facts_.ranks.pop_back();
  Channel(0, Activations(0), 4);
  Receives(0, Gradients(0), 5);
  Receives(1, Activations(0), 5);
  Channel(1, Gradients(0), 4);

  HangDecision decided = DecideAfter(absl::Seconds(31));

  EXPECT_EQ(decided.act, Act::kRestart);
  EXPECT_THAT(decided.culprits, IsEmpty());
  EXPECT_THAT(decided.reason, HasSubstr("the ranks wait for each other in step 37: rank 0 on w1 waits in receive 5 "
                                        "(chunk 0, micro-batch 5) of gradients 1->0, rank 1 on w2 waits in receive 5 "
                                        "(chunk 0, micro-batch 5) of activations 0->1"));
}

TEST_F(PipelineHangTest, PacketThatWasSentAndDoesNotArrive_IsBlamedOnTheNetwork) {
  facts_.ranks.pop_back();
  Channel(0, Activations(0), 18);
  Receives(0, Gradients(0), 15);
  Receives(1, Activations(0), 17);
  Channel(1, Gradients(0), 14);

  HangDecision decided = DecideAfter(absl::Seconds(31));

  EXPECT_THAT(decided.culprits, IsEmpty());
  EXPECT_THAT(decided.reason,
              HasSubstr("rank 1 on w2 waits in receive 17 (chunk 0, micro-batch 1) of 'activations 0->1' in "
                        "step 37, although the other ranks have done their part: data does not arrive "
                        "over the network"));
}

}  // namespace
}  // namespace trainyard
