// Tests communicators among real processes: sums in closed form in worlds of 1 to 4, and the behaviour when a peer
// stops or crashes.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "tests/parity/stores.h"
#include "tests/parity/world.h"
#include "worker/collectives/communicator.h"
#include "worker/collectives/shared_memory_communicator.h"

namespace trainyard {
namespace {

absl::Status ExpectAll(const at::Tensor& tensor, double expected, absl::string_view what) {
  if (tensor.to(at::kDouble).eq(expected).all().item<bool>()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, " is not ", expected));
}

// Runs every kind of operation on inputs that depend on the rank, several of them at the same time.
absl::StatusOr<std::string> SumsMain(Communicator& comm, const std::string&) {
  int64_t n = comm.world_size(), rank = comm.rank();
  double sum = static_cast<double>(n * (n + 1)) / 2;
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
    at::Tensor a = at::full({1000}, rank + 1, type), b = at::full({7}, 2 * (rank + 1), type);
    auto first = comm.AllReduceSum(a), second = comm.AllReduceSum(b);
    RETURN_IF_ERROR(second->Wait());
    RETURN_IF_ERROR(first->Wait());
    RETURN_IF_ERROR(first->Wait());  // a second wait returns the same result
    RETURN_IF_ERROR(ExpectAll(a, sum, "the result of the first all-reduce"));
    RETURN_IF_ERROR(ExpectAll(b, 2 * sum, "the result of the second all-reduce"));

    at::Tensor copied = at::full({5}, rank, type);
    RETURN_IF_ERROR(comm.Broadcast(copied, static_cast<int>(n) - 1)->Wait());
    RETURN_IF_ERROR(ExpectAll(copied, static_cast<double>(n - 1), "the result of the broadcast"));

    at::Tensor gathered = at::full({3 * n}, -1, type), part = at::full({3}, -1, type);
    RETURN_IF_ERROR(comm.AllGather(gathered, at::full({3}, rank, type))->Wait());
    RETURN_IF_ERROR(comm.ReduceScatterSum(part, at::arange(3 * n, type).mul_(rank + 1))->Wait());
    for (int64_t i = 0; i < n; ++i) {
      RETURN_IF_ERROR(ExpectAll(gathered.narrow(0, 3 * i, 3), static_cast<double>(i), "the gathered part"));
    }
    for (int64_t i = 0; i < 3; ++i) {
      RETURN_IF_ERROR(ExpectAll(part.narrow(0, i, 1), sum * static_cast<double>(3 * rank + i), "the scattered sum"));
    }
  }
  RETURN_IF_ERROR(comm.Barrier()->Wait());
  CollectiveProgress progress = comm.progress();
  if (progress.num_started != progress.num_completed || !progress.waits_in.empty()) {
    return absl::InternalError("operations are in progress after the last wait");
  }
  return std::string();
}

// Rank 1 stops itself; the others wait for it, are aborted by another thread, and report how long the abort took. A
// socket outside the group must stay intact.
absl::StatusOr<std::string> AbortMain(Communicator& comm, const std::string&) {
  if (comm.rank() == 1) raise(SIGSTOP);
  int link[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, link) != 0) return absl::InternalError("socketpair failed");
  at::Tensor t = at::full({1 << 18}, 1.0, at::kFloat);
  auto pending = comm.AllReduceSum(t);
  absl::Time aborted;
  std::string waited_in;
  std::atomic<bool> has_returned = false;
  std::thread other([&] {
    // Sleeps until the main thread is inside its wait, and a little longer, so that gloo's threads wait too.
    while (!has_returned && comm.progress().waits_in.empty()) absl::SleepFor(absl::Milliseconds(1));
    absl::SleepFor(absl::Milliseconds(200));
    waited_in = comm.progress().waits_in;
    aborted = absl::Now();
    comm.Abort("generation 7 is over");
    comm.Abort("again");
  });
  absl::Status status = pending->Wait();
  absl::Time returned = absl::Now();
  has_returned = true;
  other.join();
  absl::Duration took = returned - aborted;
  // All ranks abort at about the same time. A rank that aborts slightly later than a peer may lose its connection to
  // that peer before its own abort.
  bool peer_was_first = comm.world_size() > 2 && absl::IsUnavailable(status);
  if (!peer_was_first && (!absl::IsAborted(status) || status.message() != "generation 7 is over"))
    return absl::InternalError(status.ToString());
  if (comm.Barrier()->Wait().code() != status.code()) return absl::InternalError("a later operation did not fail");
  if (!peer_was_first && !absl::StrContains(waited_in, "all-reduce"))
    return absl::InternalError(absl::StrCat("waited in '", waited_in, "'"));
  if (write(link[0], "x", 1) != 1) return absl::InternalError("the socket outside the group was shut down");
  return absl::StrCat(absl::ToInt64Microseconds(took));
}

// Rank 0 crashes before it takes part in the operation; the others must detect it.
absl::StatusOr<std::string> CrashMain(Communicator& comm, const std::string&) {
  if (comm.rank() == 0) raise(SIGKILL);
  absl::Status status = comm.AllReduceSum(at::full({1 << 18}, 1.0, at::kFloat))->Wait();
  return status.ToString();
}

struct Group {
  Transport transport;
  int size;
};

std::string NameOf(const testing::TestParamInfo<Group>& info) {
  return absl::StrCat(absl::StrReplaceAll(TransportName(info.param.transport), {{" ", "_"}}), "_", info.param.size);
}

// Tests tensors that are larger than a piece of shared memory but not a multiple of its size, a tensor with two
// dimensions, and an empty one.
absl::StatusOr<std::string> LargeMain(Communicator& comm, const std::string&) {
  const int64_t n = comm.world_size(), rank = comm.rank(), size = 100'003;
  const double sum = static_cast<double>(n * (n + 1)) / 2;
  at::Tensor large = at::arange(size, at::kDouble).mul_(rank + 1), none = at::full({0}, 1.0, at::kFloat);
  auto reduced = comm.AllReduceSum(large), empty = comm.AllReduceSum(none);
  RETURN_IF_ERROR(reduced->Wait());
  RETURN_IF_ERROR(ExpectAll(large.sub(at::arange(size, at::kDouble).mul_(sum)), 0, "large minus expected sum"));
  at::Tensor gathered = at::full({n, size}, -1, at::kLong), part = at::full({size}, -1, at::kLong);
  at::Tensor mine = comm.NewBuffer(size, at::kLong).copy_(at::arange(size, at::kLong).add_(rank * size));
  RETURN_IF_ERROR(comm.AllGather(gathered, mine)->Wait());
  RETURN_IF_ERROR(ExpectAll(gathered.view(-1).sub(at::arange(n * size, at::kLong)), 0, "gathered minus expected"));
  RETURN_IF_ERROR(comm.ReduceScatterSum(part, at::arange(n * size, at::kLong))->Wait());
  RETURN_IF_ERROR(
      ExpectAll(part.sub(at::arange(size, at::kLong).add_(rank * size).mul_(n)), 0, "scattered minus expected"));
  RETURN_IF_ERROR(comm.Broadcast(large, 0)->Wait());
  RETURN_IF_ERROR(empty->Wait());
  return std::string();
}

// Rank 0 sums while the others gather: all ranks must get an error and none may wait forever. At least one error must
// name the operation of the other rank.
absl::StatusOr<std::string> MixedMain(Communicator& comm, const std::string&) {
  at::Tensor t = at::full({8}, 1.0, at::kFloat), all = at::full({8 * comm.world_size()}, 0.0, at::kFloat);
  absl::Status status = comm.rank() == 0 ? comm.AllReduceSum(t)->Wait() : comm.AllGather(all, t)->Wait();
  return status.ToString();
}

// Runs three steps of three operations. Then rank 1 skips the second operation, and runs the third while rank 0 runs
// the second.
absl::StatusOr<std::string> DeviatingMain(Communicator& comm, const std::string&) {
  at::Tensor part = at::full({8}, 1.0, at::kFloat), loss = at::full({1}, 1.0, at::kDouble);
  for (int step = 1; step <= 3; ++step) {
    RETURN_IF_ERROR(comm.AllReduceSum(part)->Wait());
    RETURN_IF_ERROR(comm.AllReduceSum(part)->Wait());
    RETURN_IF_ERROR(comm.AllReduceSum(loss)->Wait());
  }
  RETURN_IF_ERROR(comm.AllReduceSum(part)->Wait());
  return comm.AllReduceSum(comm.rank() == 1 ? loss : part)->Wait().ToString();
}

// The last rank stops itself before the second barrier, so that rank 0 reports it as missing, and the others report
// that rank 0 did not release them.
absl::StatusOr<std::string> MonitoredBarrierMain(Communicator& comm, const std::string&) {
  RETURN_IF_ERROR(comm.MonitoredBarrier(absl::Minutes(1)));
  if (comm.rank() == comm.world_size() - 1) raise(SIGSTOP);
  return comm.MonitoredBarrier(absl::Milliseconds(300)).ToString();
}

// The last rank crashes before the second barrier.
absl::StatusOr<std::string> CrashBeforeBarrierMain(Communicator& comm, const std::string&) {
  RETURN_IF_ERROR(comm.MonitoredBarrier(absl::Minutes(1)));
  if (comm.rank() == comm.world_size() - 1) raise(SIGKILL);
  return comm.MonitoredBarrier(absl::Minutes(1)).ToString();
}

class CommunicatorByWorldSize : public testing::TestWithParam<Group> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CommunicatorByWorldSize,
                         testing::Values(Group{Transport::kGloo, 1}, Group{Transport::kGloo, 2},
                                         Group{Transport::kGloo, 3}, Group{Transport::kGloo, 4},
                                         Group{Transport::kShared, 1}, Group{Transport::kShared, 2},
                                         Group{Transport::kShared, 3}, Group{Transport::kShared, 4},
                                         Group{Transport::kHostwise, 4}),
                         NameOf);

TEST_P(CommunicatorByWorldSize, EveryOperation_ReturnsTheExpectedResult) {
  World world(GetParam().size, "sums", "", GetParam().transport);
  EXPECT_TRUE(world.Results().ok());
}

TEST_P(CommunicatorByWorldSize, AcceptsTensorsOfAnySizeAndShape) {
  World world(GetParam().size, "large", "", GetParam().transport);
  EXPECT_TRUE(world.Results().ok());
}

TEST(SharedMemory, DifferentOperations_FailOnEveryRank) {
  World world(2, "mixed", "", Transport::kShared);
  std::string first = *world.ResultOf(0), second = *world.ResultOf(1);
  EXPECT_TRUE(absl::StrContains(first + second, "takes part in all-")) << first << "; " << second;
  EXPECT_FALSE(absl::StrContains(first, "OK"));
  EXPECT_FALSE(absl::StrContains(second, "OK"));
}

TEST(SharedMemory, DifferentOperations_AreBlamedOnTheRankThatDeviatesFromEarlierSteps) {
  World world(2, "deviating", "", Transport::kShared);

  for (int rank : {0, 1}) {
    std::string message = *world.ResultOf(rank);
    EXPECT_TRUE(absl::StrContains(message, "; rank 1 is at fault: in earlier steps, all-reduce (8 x fp32) came next"))
        << message;
  }
}

TEST(SharedMemory, Join_WithAMissingPeer_TimesOut) {
  MemoryStore store;
  auto communicator =
      NewSharedMemoryCommunicator({.rank = 0, .world_size = 2, .store = &store, .timeout = absl::Milliseconds(50)});

  EXPECT_TRUE(absl::IsDeadlineExceeded(communicator.status())) << communicator.status();
}

TEST(SharedMemory, Join_AtTheEndOfTheGeneration_Aborts) {
  MemoryStore store;
  store.EndGeneration();
  auto communicator = NewSharedMemoryCommunicator({.rank = 1, .world_size = 2, .store = &store});

  EXPECT_TRUE(absl::IsAborted(communicator.status())) << communicator.status();
}

class BrokenCommunicator : public testing::TestWithParam<Group> {};
INSTANTIATE_TEST_SUITE_P(Worlds, BrokenCommunicator,
                         testing::Values(Group{Transport::kGloo, 2}, Group{Transport::kGloo, 3},
                                         Group{Transport::kGloo, 4}, Group{Transport::kShared, 2},
                                         Group{Transport::kShared, 3}, Group{Transport::kShared, 4}),
                         NameOf);

TEST_P(BrokenCommunicator, Abort_DuringAWaitForAStoppedPeer_ReturnsWithin200Ms) {
  // A busy machine may delay a thread by 200 ms, so it is enough that one of five attempts is fast.
  int64_t slowest_micros = INT64_MAX;
  for (int attempt = 0; attempt < 5 && slowest_micros >= 200'000; ++attempt) {
    World world(GetParam().size, "abort", "", GetParam().transport);
    slowest_micros = 0;
    for (int rank = 0; rank < GetParam().size; ++rank) {
      if (rank == 1) continue;
      absl::StatusOr<std::string> micros = world.ResultOf(rank);
      ASSERT_TRUE(micros.ok()) << micros.status();
      slowest_micros = std::max<int64_t>(slowest_micros, std::stoll(*micros));
    }
  }
  EXPECT_LT(slowest_micros, 200'000);
}

TEST_P(BrokenCommunicator, MonitoredBarrier_NamesTheMissingRank) {
  const int missing = GetParam().size - 1;
  const auto names_it = [&](absl::string_view text) {
    const std::string lower = absl::AsciiStrToLower(text);
    return absl::StrContains(lower, absl::StrCat("rank ", missing)) ||
           absl::StrContains(lower, absl::StrCat("ranks ", missing));
  };
  std::unique_ptr<World> world;
  std::string status;
  // On a busy machine, another rank may be late, too: one attempt in five must name the stopped rank alone.
  for (int attempt = 0; attempt < 5 && !names_it(status); ++attempt) {
    world = std::make_unique<World>(GetParam().size, "monitored-barrier", "", GetParam().transport);
    absl::StatusOr<std::string> result = world->ResultOf(0);
    ASSERT_TRUE(result.ok()) << result.status();
    status = *std::move(result);
    EXPECT_TRUE(absl::StrContains(status, "DEADLINE_EXCEEDED")) << status;
  }
  EXPECT_TRUE(names_it(status)) << status;
  if (GetParam().transport != Transport::kShared) return;
  for (int rank = 1; rank < GetParam().size - 1; ++rank) {
    absl::StatusOr<std::string> other = world->ResultOf(rank);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_TRUE(absl::StrContains(*other, "DEADLINE_EXCEEDED")) << *other;
    EXPECT_TRUE(absl::StrContains(*other, "rank 0 has left the group")) << *other;
  }
}

TEST_P(BrokenCommunicator, PeerCrash_FailsTheOperationOnAllOtherRanks) {
  World world(GetParam().size, "crash", "", GetParam().transport);

  EXPECT_FALSE(world.ResultOf(0).ok());
  for (int rank = 1; rank < GetParam().size; ++rank) {
    absl::StatusOr<std::string> status = world.ResultOf(rank);
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_TRUE(absl::StrContains(*status, "UNAVAILABLE")) << *status;
    EXPECT_TRUE(absl::StrContains(*status, "all-reduce")) << *status;
  }
}

// One rank of a host crashes, and all ranks of both hosts get an error.
TEST(Hostwise, PeerCrash_FailsTheOperationOnAllOtherRanks) {
  World world(4, "crash", "", Transport::kHostwise);

  EXPECT_FALSE(world.ResultOf(0).ok());
  for (int rank = 1; rank < 4; ++rank) {
    absl::StatusOr<std::string> status = world.ResultOf(rank);
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_TRUE(absl::StrContains(*status, "UNAVAILABLE")) << *status;
  }
}

TEST(Gloo, MonitoredBarrier_NamesABrokenConnectionAsSuch) {
  World world(3, "crash-before-barrier", "", Transport::kGloo);

  EXPECT_FALSE(world.ResultOf(2).ok());
  for (int rank : {0, 1}) {
    absl::StatusOr<std::string> status = world.ResultOf(rank);
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_TRUE(absl::StrContains(*status, "UNAVAILABLE")) << *status;
    if (rank == 0) {
      EXPECT_TRUE(absl::StrContains(*status, "a connection broke after ")) << *status;
    }
  }
}

TEST(Gloo, Rendezvous_WithAMissingPeer_TimesOut) {
  MemoryStore store;
  auto communicator =
      NewGlooCommunicator({.rank = 0, .world_size = 2, .store = &store, .timeout = absl::Milliseconds(50)});

  EXPECT_TRUE(absl::IsDeadlineExceeded(communicator.status())) << communicator.status();
}

TEST(Gloo, Rendezvous_AtTheEndOfTheGeneration_Aborts) {
  MemoryStore store;
  std::thread ending([&] { store.EndGeneration(); });
  auto communicator = NewGlooCommunicator({.rank = 0, .world_size = 2, .store = &store});
  ending.join();

  EXPECT_TRUE(absl::IsAborted(communicator.status())) << communicator.status();
}

TEST(Gloo, RankOutsideTheWorld_OrNoStore_IsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(NewGlooCommunicator({.rank = 2, .world_size = 2}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(NewGlooCommunicator({.rank = 0, .world_size = 2, .store = nullptr}).status()));
}

TEST(Gloo, AddressOfAnotherHost_IsRefusedAndNamed) {
  MemoryStore store;
  auto communicator = NewGlooCommunicator({.rank = 0, .world_size = 2, .address = "192.0.2.1", .store = &store});

  ASSERT_FALSE(communicator.ok());
  EXPECT_TRUE(absl::StrContains(communicator.status().message(), "192.0.2.1")) << communicator.status();
}

TEST(SingleCommunicator, Operations_AfterAbort_Fail) {
  auto communicator = *NewGlooCommunicator({.rank = 0, .world_size = 1});
  EXPECT_TRUE(communicator->Barrier()->Wait().ok());

  communicator->Abort("over");

  EXPECT_TRUE(absl::IsAborted(communicator->Barrier()->Wait()));
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  using namespace trainyard;
  RunAsRankIfRequested(argc, argv,
                       {{"sums", SumsMain},
                        {"abort", AbortMain},
                        {"crash", CrashMain},
                        {"large", LargeMain},
                        {"mixed", MixedMain},
                        {"deviating", DeviatingMain},
                        {"crash-before-barrier", CrashBeforeBarrierMain},
                        {"monitored-barrier", MonitoredBarrierMain}});
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
