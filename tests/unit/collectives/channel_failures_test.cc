// How calls of a channel end when the peer does not continue, over every transport. Where a rank crashes, each rank is
// a process; elsewhere, both ends are in this process.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/parity/world.h"
#include "tests/unit/collectives/channel_ends.h"
#include "worker/collectives/abort_switch.h"
#include "worker/collectives/channel.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ChannelFailures : public Channels {};
INSTANTIATE_TEST_SUITE_P(Transports, ChannelFailures, kChannelCases, NameOfCase);

TEST_P(ChannelFailures, PacketForAnotherMicroBatch_IsReportedWithBoth_AndEndsTheChannel) {
  Ends ends = Join();
  ASSERT_EQ(ends.sender->Send({.chunk = 0, .micro_batch = 4}, {Numbers(4, at::kFloat)}), absl::OkStatus());
  ASSERT_EQ(ends.sender->Send({.chunk = 0, .micro_batch = 5}, {Numbers(4, at::kFloat)}), absl::OkStatus());

  absl::Status status = ends.receiver->Receive({.chunk = 1, .micro_batch = 3}).status();

  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("receive 1 (chunk 1, micro-batch 3) of channel 'activations 0->1' failed on "
                                          "rank 1: expected chunk 1, micro-batch 3, but the sender's packet 1 is for "
                                          "chunk 0, micro-batch 4"));
  EXPECT_EQ(ends.receiver->Receive({.chunk = 0, .micro_batch = 4}).status(), status) << "the first error is permanent";
  absl::Status peer = ends.sender->Send({.chunk = 0, .micro_batch = 6}, {});
  EXPECT_TRUE(absl::IsUnavailable(peer)) << peer;
  EXPECT_THAT(peer.message(), HasSubstr("room for packet 3 (chunk 0, micro-batch 6)"));
}

TEST_P(ChannelFailures, TensorThatCannotBeSent_IsNamed) {
  Ends ends = Join();

  absl::Status status = ends.sender->Send({}, {Numbers(1, at::kFloat), at::Tensor()});

  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(),
              HasSubstr("packet 1 (chunk 0, micro-batch 0) of channel 'activations 0->1' failed on rank "
                        "0: tensor 1 of the packet cannot be sent: it is undefined"));
  EXPECT_THAT(status.message(), Not(HasSubstr("room")));
  EXPECT_TRUE(absl::IsUnavailable(ends.receiver->Receive({}).status())) << "the sender cannot continue";

  Ends second = Join();
  std::vector<at::Tensor> many(kMaxPacketTensors + 1, Numbers(1, at::kFloat));
  EXPECT_THAT(second.sender->Send({}, many).message(), HasSubstr("a packet of 65 tensors; at most 64"));
}

TEST_P(ChannelFailures, WrongEnd_IsRefused_AndTheChannelStaysUsable) {
  Ends ends = Join();

  EXPECT_EQ(ends.receiver->Send({}, {}),
            absl::FailedPreconditionError("rank 1 receives over channel 'activations 0->1'; only rank 0 can send"));
  EXPECT_EQ(ends.sender->Receive({}).status(),
            absl::FailedPreconditionError("rank 0 sends over channel 'activations 0->1'; only rank 1 can receive"));

  EXPECT_EQ(ends.sender->Send({}, {}), absl::OkStatus());
  EXPECT_TRUE(ends.receiver->Receive({}).ok());
}

TEST_P(ChannelFailures, SilentPeer_GivesDeadlineExceeded) {
  Ends waiting = Join(absl::Milliseconds(300));

  absl::Status status = waiting.receiver->Receive({.micro_batch = 8}).status();

  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("receive 1 (chunk 0, micro-batch 8) of channel 'activations 0->1'"));
}

TEST_P(ChannelFailures, PeerThatReceivesNothing_GivesDeadlineExceeded) {
  Ends ends = Join(absl::Milliseconds(300));
  ASSERT_EQ(ends.sender->Send({}, {}), absl::OkStatus());
  ASSERT_EQ(ends.sender->Send({}, {}), absl::OkStatus());

  absl::Status status = ends.sender->Send({}, {});

  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("room for packet 3"));
}

// The waits that an abort or the departure of a peer must end.
enum class Wait { kReceive, kRoom };

absl::Status CallThatWaits(Ends& ends, Wait wait) {
  if (wait == Wait::kReceive) return ends.receiver->Receive({}).status();
  const at::Tensor large = at::full({100'000}, 1.0f);
  RETURN_IF_ERROR(ends.sender->Send({}, {large}));
  RETURN_IF_ERROR(ends.sender->Send({}, {large}));
  return ends.sender->Send({}, {large});
}

Channel& WaitingEnd(Ends& ends, Wait wait) { return wait == Wait::kReceive ? *ends.receiver : *ends.sender; }

// Starts a call that waits, and then runs `end_it`. Returns the status of the call, and the time from the start of
// `end_it` until the call returned.
std::pair<absl::Status, absl::Duration> EndWait(Ends& ends, Wait wait, const std::function<void()>& end_it) {
  absl::Status status;
  absl::Time returned;
  std::atomic<bool> has_returned = false;
  std::thread waiting([&] {
    status = CallThatWaits(ends, wait);
    returned = absl::Now();
    has_returned = true;
  });
  const std::string expected = wait == Wait::kReceive ? "receive 1" : "room for packet 3";
  while (!has_returned && !absl::StrContains(WaitingEnd(ends, wait).progress().waits_in, expected)) {
    std::this_thread::yield();
  }
  const absl::Time began = absl::Now();
  end_it();
  waiting.join();
  return {status, returned - began};
}

TEST_P(ChannelFailures, Abort_EndsEveryWaitWithin200Ms) {
  for (Wait wait : {Wait::kReceive, Wait::kRoom}) {
    // A busy machine may delay a thread by 200 ms: one attempt in five must succeed.
    absl::Duration took = absl::InfiniteDuration();
    for (int attempt = 0; attempt < 5 && took >= absl::Milliseconds(200); ++attempt) {
      Ends ends = Join();
      absl::Status status;
      std::tie(status, took) = EndWait(ends, wait, [&] { WaitingEnd(ends, wait).Abort("generation 7 is over"); });
      EXPECT_EQ(status, absl::AbortedError("generation 7 is over"));
      EXPECT_EQ(CallThatWaits(ends, wait), absl::AbortedError("generation 7 is over")) << "later calls fail too";
    }
    EXPECT_LT(took, absl::Milliseconds(200));
  }
}

TEST_P(ChannelFailures, PeerThatLeaves_EndsEveryWait_AndIsNamed) {
  for (Wait wait : {Wait::kReceive, Wait::kRoom}) {
    Ends ends = Join();

    auto [status, took] = EndWait(ends, wait, [&] { (wait == Wait::kReceive ? ends.sender : ends.receiver).reset(); });

    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("channel 'activations 0->1' failed on rank"));
  }
}

TEST_P(ChannelFailures, AbortSwitch_AbortsChannels_AndReportsTheirProgress) {
  Ends ends = Join();
  AbortSwitch abort_switch;
  abort_switch.Attach(ends.receiver.get());
  ASSERT_EQ(ends.sender->Send({.micro_batch = 2}, {}), absl::OkStatus());
  ASSERT_TRUE(ends.receiver->Receive({.micro_batch = 2}).ok());

  std::vector<NamedProgress> progress = abort_switch.Progress();
  abort_switch.Abort("over");

  ASSERT_EQ(progress.size(), 1u);
  EXPECT_EQ(progress[0].name, "activations 0->1");
  EXPECT_EQ(progress[0].progress.last_started, "packet 1 (chunk 0, micro-batch 2)");
  EXPECT_EQ(ends.receiver->Receive({}).status(), absl::AbortedError("over"));
  abort_switch.Attach(ends.sender.get());
  EXPECT_EQ(ends.sender->Send({}, {}), absl::AbortedError("over"));
  abort_switch.Detach();
}

// `arguments`: the folder of a store, the transport of the channel, and the rank that crashes after the first packet.
absl::StatusOr<std::string> CrashMain(Communicator& communicator, const std::string& arguments) {
  const std::vector<std::string> fields = absl::StrSplit(arguments, ' ');
  const int rank = communicator.rank();
  FolderStore store(fields[0]);
  ASSIGN_OR_RETURN(auto channel, NewChannel({.group = {.world_size = 2,
                                                       .rank = rank,
                                                       .store = &store,
                                                       .shared_memory = fields[1] == "shared",
                                                       .timeout = absl::Minutes(2)},
                                             .from = 0,
                                             .to = 1}));
  const at::Tensor large = at::full({1 << 18}, 1.0f);
  // A packet that is under way when its sender crashes may be lost.
  absl::Status status = rank == 0 ? channel->Send({}, {large}) : channel->Receive({}).status();
  if (fields[2] == absl::StrCat(rank)) raise(SIGKILL);
  for (int i = 1; i <= 3 && status.ok(); ++i) {
    status = rank == 0 ? channel->Send({.micro_batch = i}, {large}) : channel->Receive({.micro_batch = i}).status();
  }
  return status.ToString();
}

TEST(ChannelsBetweenProcesses, PeerThatCrashes_IsNamed) {
  for (const char* transport : {"shared", "gloo"}) {
    for (int crashed : {0, 1}) {
      TemporaryFolder folder;
      World world(2, "crash", absl::StrCat(folder.path(), " ", transport, " ", crashed));

      EXPECT_FALSE(world.ResultOf(crashed).ok());
      absl::StatusOr<std::string> survivor = world.ResultOf(1 - crashed);
      ASSERT_TRUE(survivor.ok()) << survivor.status();
      EXPECT_THAT(*survivor, HasSubstr(crashed == 0 ? "UNAVAILABLE: receive " : "UNAVAILABLE: room for packet "));
      EXPECT_THAT(*survivor, HasSubstr(absl::StrCat("of channel 'world 0->1' failed on rank ", 1 - crashed, ": ")));
    }
  }
}

// What the sender has written before it leaves is still in shared memory.
TEST(SharedMemoryChannel, PacketsOfASenderThatHasLeft_StillArrive) {
  MemoryStore store;
  std::unique_ptr<Channel> receiver;
  ASSERT_EQ(OnRanks(2,
                    [&](int rank) -> absl::Status {
                      ASSIGN_OR_RETURN(auto channel, NewChannel(ChannelOf({Transport::kShared, 2}, rank, store)));
                      if (rank == 0) return channel->Send({}, {Numbers(5, at::kFloat)});
                      receiver = std::move(channel);
                      return absl::OkStatus();
                    }),
            absl::OkStatus());

  EXPECT_TRUE(receiver->Receive({}).ok());
  absl::Status status = receiver->Receive({}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("rank 0 has left the group"));
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  using namespace trainyard;
  RunAsRankIfRequested(argc, argv, {{"crash", CrashMain}});
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
