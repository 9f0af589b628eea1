// policy/network: what is reported about a slow network, and what must not be attributed to it.
#include "coordinator/policy/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace trainyard {
namespace {

using ::testing::IsEmpty;
using ::testing::MatchesRegex;

constexpr absl::Time kNetworkStart = absl::FromUnixSeconds(1'700'000'000);

// Two ranks on two hosts, which report their totals twice per second.
struct Pair {
  // Both ranks make steps for `seconds`; a step has the given computing and waiting times on each rank.
  void Step(int seconds, double compute_s, double wait_s, double other_compute_s, double other_wait_s) {
    for (int half = 0; half < 2 * seconds; ++half) {
      now += absl::Milliseconds(500);
      const auto made = static_cast<uint64_t>(0.5 / (compute_s + wait_s));
      steps += made;
      const double n = static_cast<double>(made);
      first.Add(now, first_compute += n * compute_s, first_wait += n * wait_s, steps);
      second.Add(now, second_compute += n * other_compute_s, second_wait += n * other_wait_s, steps);
    }
  }
  void Step(int seconds, double compute_s, double wait_s) { Step(seconds, compute_s, wait_s, compute_s, wait_s); }
  std::vector<WaitingRank> Ranks(const char* second_host = "w2") const {
    return {{.host = "w1", .trend = &first}, {.host = second_host, .trend = &second}};
  }
  std::string FindSlow() const { return FindSlowNetwork(now, Ranks()); }

  absl::Time now = kNetworkStart;
  uint64_t steps = 0;
  double first_compute = 0, first_wait = 0, second_compute = 0, second_wait = 0;
  WaitTrend first, second;
};

TEST(Network, SlowNetwork_IsReported_AndAlsoItsEnd) {
  Pair pair;
  pair.Step(10, 0.010, 0.004);
  EXPECT_THAT(pair.FindSlow(), IsEmpty());

  pair.Step(5, 0.010, 0.090);
  EXPECT_THAT(pair.FindSlow(),
              MatchesRegex("the network between hosts w1, w2 is slow or loses packets: a step waits 90 ms "
                           "for the other ranks \\(before: [45]\\.. ms\\), while its computing time is unchanged"));
  EXPECT_FALSE(WaitsAsUsual(pair.now, pair.Ranks()));

  pair.Step(5, 0.010, 0.004);
  EXPECT_THAT(pair.FindSlow(), IsEmpty());
  EXPECT_TRUE(WaitsAsUsual(pair.now, pair.Ranks()));
}

TEST(Network, OtherCauses_AreNotAttributedToTheNetwork) {
  Pair slow_rank;
  slow_rank.Step(10, 0.010, 0.004);
  slow_rank.Step(5, 0.010, 0.090, 0.096, 0.004);
  EXPECT_THAT(slow_rank.FindSlow(), IsEmpty()) << "the other rank waits for one that computes longer";

  Pair busy_hosts;
  busy_hosts.Step(10, 0.010, 0.004);
  busy_hosts.Step(5, 0.050, 0.060);
  EXPECT_THAT(busy_hosts.FindSlow(), IsEmpty()) << "computing takes longer, too";

  Pair small;
  small.Step(10, 0.010, 0.0005);
  small.Step(5, 0.010, 0.008);
  EXPECT_THAT(small.FindSlow(), IsEmpty()) << "a few milliseconds can come from the scheduler";

  Pair from_the_start;
  from_the_start.Step(10, 0.010, 0.090);
  EXPECT_THAT(from_the_start.FindSlow(), IsEmpty()) << "the network was never faster";

  Pair one_host;
  one_host.Step(10, 0.010, 0.004);
  one_host.Step(5, 0.010, 0.090);
  EXPECT_THAT(FindSlowNetwork(one_host.now, one_host.Ranks("w1")), IsEmpty());

  one_host.now += absl::Seconds(30);
  EXPECT_THAT(one_host.FindSlow(), IsEmpty()) << "no report of the ranks arrives any more";
}

TEST(Network, LateMessages_AreReportedAfterThreeInARow_AndAlsoTheirEnd) {
  using Change = ArrivalTrend::Change;
  ArrivalTrend trend;
  absl::Time now = kNetworkStart;
  const auto add = [&](int offset_ms) { return trend.Add(now += absl::Seconds(1), absl::Milliseconds(offset_ms)); };
  // The clock of the host is 5 s ahead, and a message takes 1 to 3 ms.
  for (int i = 0; i < 200; ++i) ASSERT_EQ(add(4'997 + i % 3), Change::kNone);

  EXPECT_EQ(add(4'900), Change::kNone) << "one late message proves nothing";
  EXPECT_EQ(add(4'998), Change::kNone);
  EXPECT_EQ(add(4'938), Change::kNone);
  EXPECT_EQ(add(4'938), Change::kNone);
  EXPECT_EQ(add(4'938), Change::kLate);
  EXPECT_EQ(trend.late_by(), absl::Milliseconds(61));
  EXPECT_EQ(add(4'938), Change::kNone) << "reported only once";

  EXPECT_EQ(add(4'998), Change::kNone);
  EXPECT_EQ(add(4'998), Change::kNone);
  EXPECT_EQ(add(4'998), Change::kPunctual);
}

TEST(Network, ClockThatWasSet_IsReportedOnce_ThenTheNewOffsetIsUsual) {
  ArrivalTrend trend;
  absl::Time now = kNetworkStart;
  int late = 0, punctual = 0;
  for (int i = 0; i < 400; ++i) {
    ArrivalTrend::Change change = trend.Add(now += absl::Seconds(1), absl::Seconds(i < 100 ? 0 : -10));
    late += change == ArrivalTrend::Change::kLate ? 1 : 0;
    punctual += change == ArrivalTrend::Change::kPunctual ? 1 : 0;
  }

  EXPECT_EQ(late, 1);
  EXPECT_EQ(punctual, 1);
}

}  // namespace
}  // namespace trainyard
