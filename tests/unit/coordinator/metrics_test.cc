// The list of metrics that people read is the list that the code serves; and job labels go with their jobs.
#include "coordinator/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "tests/unit/coordinator/core_harness.h"

namespace trainyard {
namespace {

using ::testing::IsEmpty;

TEST(Metrics, DocumentedList_IsWhatTheCodeServes) {
  auto text = ReadFile("docs/metrics.md");
  ASSERT_TRUE(text.ok()) << text.status();
  std::set<std::string> documented;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (!absl::ConsumePrefix(&line, "| `trainyard_") || absl::StartsWith(line, "worker_")) continue;
    documented.insert(absl::StrCat("| `trainyard_", absl::StrReplaceAll(line, {{"| |", "|  |"}})));
  }
  std::set<std::string> served;
  for (const MetricSpec& spec : CoordinatorMetricSpecs()) {
    served.insert(
        absl::StrCat("| `", spec.name, "` | ", MetricKindName(spec.kind), " | ", spec.labels, " | ", spec.help, " |"));
  }
  EXPECT_EQ(documented, served);
}

int CountSeriesOfJobs(CoordinatorMetrics& metrics) {
  int count = 0;
  for (const auto& family : metrics.registry()->Collect()) {
    for (const auto& metric : family.metric) {
      for (const auto& label : metric.label) count += label.name == "job" ? 1 : 0;
    }
  }
  return count;
}

TEST(Metrics, SeriesOfAJob_AreDroppedWhenItIsFinal) {
  CoordinatorMetrics metrics;
  auto event = std::make_shared<v1::Event>();
  event->mutable_step()->set_step(3);
  event->mutable_step()->set_tokens(64);
  event->mutable_step()->set_step_s(0.5);
  event->mutable_step()->set_exposed_communication_s(0.125);
  metrics.ObserveEffect(JobTold{JobId("job00000001"), event});
  EXPECT_EQ(CountSeriesOfJobs(metrics), 4 + 8) << "step, loss, speed, waiting, and the eight parts of its time";

  metrics.ObserveEffect(JobEnded{JobId("job00000001")});
  EXPECT_EQ(CountSeriesOfJobs(metrics), 0);
}

double HostsAttached(const std::vector<prometheus::MetricFamily>& families) {
  for (const auto& family : families) {
    if (family.name != "trainyard_hosts") continue;
    for (const auto& metric : family.metric) {
      if (metric.label.at(0).value == "attached") return metric.gauge.value;
    }
  }
  return -1;
}

TEST(Metrics, Totals_AreCountedForTheScrapeThatWantsThem) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  CoordinatorMetrics metrics;
  auto scrape = [&] {
    std::future<std::vector<prometheus::MetricFamily>> scraped =
        std::async(std::launch::async, [&] { return metrics.Collect(); });
    while (scraped.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      metrics.ObserveRound({}, *harness.core, absl::UnixEpoch());
    }
    return HostsAttached(scraped.get());
  };
  EXPECT_EQ(scrape(), 0);

  host.Attach();

  EXPECT_EQ(scrape(), 1) << "nothing that was counted before the scrape";
}

TEST(Metrics, TakenPort_IsAWarning_AndAFreeOneIsTaken) {
  CoordinatorMetrics metrics;
  auto first = MetricsEndpoint::Start("127.0.0.1:0", metrics.registry());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT((*first)->warning(), IsEmpty());

  auto second = MetricsEndpoint::Start((*first)->address(), metrics.registry());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE((*second)->address(), (*first)->address());
  EXPECT_EQ((*second)->warning(), absl::StrCat("metrics port ", (*first)->address(), " is taken; serving on ",
                                               (*second)->address(), " instead"));
  EXPECT_TRUE(absl::IsInvalidArgument(MetricsEndpoint::Start("nonsense", metrics.registry()).status()));
}

}  // namespace
}  // namespace trainyard
