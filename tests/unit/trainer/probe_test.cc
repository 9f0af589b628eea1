// A probe without a daemon: which facts a rank reports, in which order, and that the ranks of a job measure together.
#include "worker/trainer/probe.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "tests/unit/link/fake_link.h"
#include "worker/collectives/single_communicator.h"

namespace trainyard {
namespace {

using ::testing::SizeIs;

constexpr TrainConfig::Probe kSmall = {.matmul_size = 32, .matmul_repeats = 2, .all_reduce_bytes = 4096};

StartOrder Order(int rank, int world_size) {
  at::set_num_threads(1);
  StartOrder order;
  order.job_id = "abcdefgh";
  order.generation = 1;
  order.rank = rank;
  order.world_size = world_size;
  order.config.probe = kSmall;
  return order;
}

TEST(Probe, BothRanksReportTheirMeasurementsAndNoStep) {
  FakeStore store;
  FakeLink links[2] = {FakeLink(&store), FakeLink(&store)};
  std::ostringstream logs[2];
  TrainerExit codes[2];
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      codes[r] = RunRank(
          Order(r, 2),
          {.link = links[r], .file_system = FileSystem::Real(), .log = logs[r], .must_leave = [] { return false; }});
    });
  }
  for (std::thread& rank : ranks) rank.join();

  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(codes[r], kExitDone) << logs[r].str();
    ASSERT_THAT(links[r].facts(), SizeIs(3));
    EXPECT_TRUE(std::holds_alternative<ReadyFact>(links[r].facts()[0]));
    const auto* probe = std::get_if<ProbeFact>(&links[r].facts()[1]);
    ASSERT_NE(probe, nullptr);
    EXPECT_GT(probe->matmul_gflops, 0);
    EXPECT_GT(probe->all_reduce_latency_s, 0);
    EXPECT_GT(probe->all_reduce_bytes_per_s, 0);
    const auto* finished = std::get_if<FinishedFact>(&links[r].facts()[2]);
    ASSERT_NE(finished, nullptr);
    EXPECT_FALSE(finished->stopped);
    EXPECT_THAT(links[r].steps(), SizeIs(0));
  }
}

TEST(Probe, GenerationThatIsOver_GivesNoMeasurement) {
  FakeStore store;
  FakeLink link(&store);
  link.set_go_status(absl::AbortedError("generation 1 is over"));
  std::ostringstream log;

  TrainerExit code = RunRank(
      Order(0, 1), {.link = link, .file_system = FileSystem::Real(), .log = log, .must_leave = [] { return false; }});

  EXPECT_EQ(code, kExitAborted);
  EXPECT_TRUE(link.FactsOf<ProbeFact>().empty());
}

TEST(Probe, SingleRank_MeasuresNoAllReduce) {
  std::unique_ptr<Communicator> communicator = NewSingleCommunicator();

  auto fact = MeasureHost(kSmall, *communicator);

  ASSERT_TRUE(fact.ok()) << fact.status();
  EXPECT_GT(fact->matmul_gflops, 0);
  EXPECT_EQ(fact->all_reduce_latency_s, 0);
  EXPECT_EQ(fact->all_reduce_bytes_per_s, 0);
}

TEST(Probe, ProbeOfThisHost_ReducesOverLoopback) {
  auto fact = ProbeThisHost(kSmall);

  ASSERT_TRUE(fact.ok()) << fact.status();
  EXPECT_GT(fact->matmul_gflops, 0);
  EXPECT_GT(fact->all_reduce_latency_s, 0);
  EXPECT_GT(fact->all_reduce_bytes_per_s, 0);
}

}  // namespace
}  // namespace trainyard
