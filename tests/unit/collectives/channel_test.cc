// Channels between ranks that are threads, over every transport: what arrives, and how far the sender may be ahead.
#include "worker/collectives/channel.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "tests/unit/collectives/channel_ends.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Transports, Channels, kChannelCases, NameOfCase);

absl::Status ExpectEqual(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  RETURN_IF_ERROR(Expect(found.size() == expected.size(), "the number of tensors"));
  for (size_t i = 0; i < found.size(); ++i) {
    RETURN_IF_ERROR(Expect(found[i].scalar_type() == expected[i].scalar_type(), "the type"));
    RETURN_IF_ERROR(Expect(found[i].is_contiguous() && !found[i].requires_grad(), "a dense tensor without a graph"));
    RETURN_IF_ERROR(Expect(found[i].equal(expected[i]), absl::StrCat("the content of tensor ", i)));
  }
  return absl::OkStatus();
}

TEST_P(Channels, CarryPacketsOfEverySizeAndType_InOrder) {
  std::vector<std::vector<at::Tensor>> packets = {{}, {at::full({0, 3}, 1.0f)}, {at::full({}, 2.5, at::kDouble)}};
  for (at::ScalarType type :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kChar, at::kByte, at::kBool}) {
    packets.push_back({Numbers(7, type), Numbers(60'000, type).view({3, 5, 4'000}), Numbers(1, type)});
  }
  packets.push_back({Numbers(1'500'000, at::kFloat)});  // larger than all packets before; a small packet follows
  packets.push_back({Numbers(10, at::kFloat)});
  packets.push_back({Numbers(1'000'000, at::kDouble), Numbers(3, at::kBFloat16)});
  packets.push_back(std::vector<at::Tensor>(kMaxPacketTensors, Numbers(9, at::kHalf)));
  Ends ends = Join();

  absl::Status status = OnRanks(2, [&](int rank) -> absl::Status {
    for (int i = 0; i < static_cast<int>(packets.size()); ++i) {
      const PacketHeader header{.chunk = i % 3, .micro_batch = i};
      if (rank == 0) {
        RETURN_IF_ERROR(ends.sender->Send(header, packets[i]));
      } else {
        ASSIGN_OR_RETURN(std::vector<at::Tensor> received, ends.receiver->Receive(header));
        RETURN_IF_ERROR(ExpectEqual(received, packets[i])) << "packet " << i;
      }
    }
    return absl::OkStatus();
  });

  EXPECT_EQ(status, absl::OkStatus());
  for (Channel* channel : {ends.sender.get(), ends.receiver.get()}) {
    EXPECT_EQ(channel->progress().num_started, packets.size());
    EXPECT_EQ(channel->progress().num_completed, packets.size());
    EXPECT_EQ(channel->progress().waits_in, "");
    EXPECT_GE(channel->waited_s(), 0);
  }
}

TEST_P(Channels, AcceptTensorsOfAnyStridesAndWithAGraph) {
  Ends ends = Join();
  at::Tensor weight = Numbers(12, at::kFloat).view({3, 4}).requires_grad_(true);
  at::Tensor transposed = weight.mul(2).t(), narrow = Numbers(100, at::kDouble).view({10, 10}).narrow(1, 3, 4);
  at::Tensor expanded = at::full({1, 3}, 4.0f).expand({5, 3});

  ASSERT_EQ(ends.sender->Send({}, {transposed, narrow, expanded}), absl::OkStatus());
  absl::StatusOr<std::vector<at::Tensor>> received = ends.receiver->Receive({});

  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(ExpectEqual(*received, {transposed.detach(), narrow, expanded}), absl::OkStatus());
}

TEST_P(Channels, TensorsMayBeChangedAfterSend_AndReceivedOnesAreNeverUsedAgain) {
  Ends ends = Join();
  at::Tensor sent = at::full({40'000}, 0.0f);
  std::vector<at::Tensor> kept;

  for (int i = 0; i < 6; ++i) {
    sent.fill_(i);
    ASSERT_EQ(ends.sender->Send({.micro_batch = i}, {sent}), absl::OkStatus());
    sent.fill_(-1);
    absl::StatusOr<std::vector<at::Tensor>> received = ends.receiver->Receive({.micro_batch = i});
    ASSERT_TRUE(received.ok()) << received.status();
    kept.push_back(received->at(0));
  }

  for (int i = 0; i < 6; ++i) EXPECT_TRUE(kept[static_cast<size_t>(i)].eq(i).all().item<bool>()) << i;
}

TEST_P(Channels, Send_IsTwoPacketsAhead_AndWaitsForAFreeSlotForTheThird) {
  Ends ends = Join();
  at::Tensor large = at::full({100'000}, 1.0f);  // requires larger slots than a new channel has
  // The receiver does nothing, so these calls return only if they do not wait for it.
  ASSERT_EQ(ends.sender->Send({.micro_batch = 0}, {large}), absl::OkStatus());
  ASSERT_EQ(ends.sender->Send({.micro_batch = 1}, {large}), absl::OkStatus());
  EXPECT_EQ(ends.sender->progress().num_completed, 2u);
  std::atomic<bool> has_returned = false;
  absl::Status third;
  std::thread sender([&] {
    third = ends.sender->Send({.chunk = 1, .micro_batch = 2}, {large});
    has_returned = true;
  });

  EXPECT_EQ(AwaitWait(*ends.sender, has_returned), "room for packet 3 (chunk 1, micro-batch 2)");
  EXPECT_EQ(ends.sender->progress().last_started, "packet 3 (chunk 1, micro-batch 2)");
  EXPECT_EQ(ends.sender->progress().num_started, 3u);
  EXPECT_EQ(ends.sender->progress().num_completed, 2u);
  EXPECT_TRUE(ends.receiver->Receive({.micro_batch = 0}).ok());
  sender.join();
  EXPECT_EQ(third, absl::OkStatus());
  EXPECT_TRUE(ends.receiver->Receive({.micro_batch = 1}).ok());
  EXPECT_TRUE(ends.receiver->Receive({.chunk = 1, .micro_batch = 2}).ok());
}

TEST_P(Channels, Receive_ReportsWhatItWaitsFor) {
  Ends ends = Join();
  std::atomic<bool> has_returned = false;
  std::thread receiver([&] {
    EXPECT_TRUE(ends.receiver->Receive({.chunk = 1, .micro_batch = 3}).ok());
    has_returned = true;
  });

  EXPECT_EQ(AwaitWait(*ends.receiver, has_returned), "receive 1 (chunk 1, micro-batch 3)");
  EXPECT_EQ(ends.receiver->progress().last_started, "packet 1 (chunk 1, micro-batch 3)");
  EXPECT_EQ(ends.sender->Send({.chunk = 1, .micro_batch = 3}, {}), absl::OkStatus());
  receiver.join();
  EXPECT_GT(ends.receiver->waited_s(), 0);
}

class Rings : public testing::TestWithParam<TransportCase> {};
INSTANTIATE_TEST_SUITE_P(Transports, Rings,
                         testing::Values(TransportCase{Transport::kShared, 3}, TransportCase{Transport::kGloo, 3},
                                         TransportCase{Transport::kHostwise, 4},
                                         TransportCase{Transport::kShared, 3, DevicePath::kDirect}),
                         NameOfCase);

// Computes for a time that the generator chooses.
void Dawdle(std::mt19937& random) {
  volatile double sum = 0;
  for (unsigned i = 0, rounds = random() % 4 * (random() % 100'000); i < rounds; ++i) sum = sum + 1;
}

// Each rank sends to the next rank and receives from the previous rank, at times of its own. What a rank passes on
// depends on everything that it has received.
absl::StatusOr<double> SumAfterRounds(Channel& to_next, Channel& from_last, int rank, unsigned seed) {
  constexpr int kRounds = 60;
  std::mt19937 random(seed);
  at::Tensor sum = at::full({3'000}, rank + 1, at::kDouble);
  for (int i = 0; i < kRounds; ++i) {
    const PacketHeader header{.chunk = i % 2, .micro_batch = i};
    Dawdle(random);
    RETURN_IF_ERROR(to_next.Send(header, {sum.narrow(0, 0, 1 + i * 40)}));
    Dawdle(random);
    ASSIGN_OR_RETURN(std::vector<at::Tensor> received, from_last.Receive(header));
    sum.narrow(0, 0, 1 + i * 40).mul_(0.75).add_(received.at(0), i % 7);
  }
  return sum.sum().item<double>();
}

TEST_P(Rings, GiveTheSameContentWhateverTheDelays) {
  const int world = GetParam().world;
  std::vector<std::vector<double>> sums;
  for (unsigned seed = 0; seed < 3; ++seed) {
    MemoryStore store;
    std::vector<double> sum_of(static_cast<size_t>(world));
    absl::Status status = OnRanks(world, [&](int rank) -> absl::Status {
      std::vector<std::unique_ptr<Channel>> channels(2);  // to the next rank, and from the one before
      for (int from = 0; from < world; ++from) {          // all ranks create their channels in this order
        const int to = (from + 1) % world;
        if (rank != from && rank != to) continue;
        ASSIGN_OR_RETURN(channels[rank == from ? 0 : 1], NewChannel(ChannelOf(GetParam(), rank, store, from, to)));
      }
      ASSIGN_OR_RETURN(sum_of[static_cast<size_t>(rank)], SumAfterRounds(*channels.at(0), *channels.at(1), rank,
                                                                         100 * seed + static_cast<unsigned>(rank)));
      // No rank may leave while the next one has packets to receive.
      RETURN_IF_ERROR(store.Put(absl::StrCat("done/", rank), ""));
      for (int r = 0; r < world; ++r) RETURN_IF_ERROR(store.Get(absl::StrCat("done/", r), absl::Minutes(1)).status());
      return absl::OkStatus();
    });
    ASSERT_EQ(status, absl::OkStatus());
    sums.push_back(sum_of);
  }

  EXPECT_EQ(sums[1], sums[0]);
  EXPECT_EQ(sums[2], sums[0]);
}

TEST(NewChannel, InvalidRanks_AreRefused) {
  MemoryStore store;
  auto refused = [&](int rank, int from, int to) {
    return NewChannel(
               {.group = {.name = "gradients", .world_size = 3, .rank = rank, .store = &store}, .from = from, .to = to})
        .status();
  };
  EXPECT_EQ(refused(1, 1, 1), absl::InvalidArgumentError("channel 'gradients 1->1': rank 1 needs no channel to itself; "
                                                         "pass the tensors on"));
  EXPECT_THAT(refused(2, 1, 0).message(), HasSubstr("channel 'gradients 1->0': ranks 1, 0 are not a valid group for "
                                                    "rank 2 in a world of 3"));
  EXPECT_TRUE(absl::IsInvalidArgument(refused(1, 1, 3)));
  EXPECT_TRUE(absl::IsInvalidArgument(refused(1, -1, 1)));
  absl::Status no_store = NewChannel({.group = {.world_size = 2}, .from = 0, .to = 1}).status();
  EXPECT_THAT(no_store.message(), HasSubstr("needs a key-value store"));
}

TEST(NewChannel, MissingPeer_IsNamed) {
  MemoryStore store;

  absl::Status status =
      NewChannel({.group = {.world_size = 4, .rank = 1, .store = &store, .timeout = absl::Milliseconds(20)},
                  .from = 1,
                  .to = 3})
          .status();

  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("channel 'world 1->3': "));
  EXPECT_THAT(status.message(), HasSubstr("rank 3"));
}

TEST(NewChannel, AtTheEndOfTheGeneration_Aborts) {
  MemoryStore store;
  store.EndGeneration();

  EXPECT_TRUE(absl::IsAborted(NewChannel(ChannelOf({Transport::kShared, 2}, 1, store)).status()));
}

// An address that does not exist is a problem only for sockets.
TEST(NewChannel, RanksOfOnePlace_UseNoSockets) {
  for (bool same_place : {true, false}) {
    MemoryStore store;
    absl::Status status = OnRanks(2, [&](int rank) -> absl::Status {
      ChannelOptions options = ChannelOf({Transport::kShared, 2}, rank, store);
      options.group.place = same_place ? "one" : absl::StrCat("place ", rank);
      options.group.address = "192.0.2.1";
      return NewChannel(options).status();
    });

    EXPECT_EQ(status.ok(), same_place) << status;
    EXPECT_EQ(absl::StrContains(status.message(), "192.0.2.1"), !same_place) << status;
  }
}

}  // namespace
}  // namespace trainyard
