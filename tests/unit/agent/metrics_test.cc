// The daemon's metrics: the documented list matches the served one, and the values are the newest totals of the core.
#include "worker/agent/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/files.h"

namespace trainyard::agent {
namespace {

TEST(WorkerMetrics, DocumentedList_MatchesTheServedMetrics) {
  auto text = ReadFile("docs/metrics.md");
  ASSERT_TRUE(text.ok()) << text.status();
  std::set<std::string> documented;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (!absl::StartsWith(line, "| `trainyard_worker_")) continue;
    documented.insert(absl::StrReplaceAll(line, {{"| |", "|  |"}}));  // the document has one space in an empty cell
  }
  std::set<std::string> served;
  for (const MetricSpec& spec : WorkerMetricSpecs()) {
    served.insert(
        absl::StrCat("| `", spec.name, "` | ", MetricKindName(spec.kind), " | ", spec.labels, " | ", spec.help, " |"));
  }
  EXPECT_EQ(documented, served);
}

// The value of the metric with this name; -1 if the metric was never set.
double ValueOf(WorkerMetrics& metrics, const std::string& name) {
  for (const auto& family : metrics.registry()->Collect()) {
    if (family.name != name) continue;
    const auto& metric = family.metric.at(0);
    return metric.counter.value + metric.gauge.value;
  }
  return -1;
}

TEST(WorkerMetrics, ShowTheNewestTotalsOfTheCore_AndTheLimits) {
  WorkerMetrics metrics(/*log_bytes_per_rank=*/1000);

  metrics.Observe({.outbox_errors = 2, .starts = 5, .facts_waiting = 7, .outbox_on_disk = false}, 3);
  metrics.Observe({.outbox_errors = 2, .starts = 6, .facts_waiting = 1, .outbox_on_disk = true}, 0);
  metrics.ObserveRankFolderLimits({.folders = 9, .bytes = 99});
  metrics.ObserveRankFolders({.count = 4, .bytes = 44});

  EXPECT_EQ(ValueOf(metrics, "trainyard_worker_outbox_errors_total"), 2);
  EXPECT_EQ(ValueOf(metrics, "trainyard_worker_starts_total"), 6);
  EXPECT_EQ(ValueOf(metrics, "trainyard_worker_facts_waiting"), 1);
  EXPECT_EQ(ValueOf(metrics, "trainyard_worker_outbox_on_disk"), 1);
  EXPECT_EQ(ValueOf(metrics, "trainyard_worker_rank_folders"), 4);
  EXPECT_EQ(ValueOf(metrics, "trainyard_worker_rank_folders_limit"), 9);
  EXPECT_EQ(ValueOf(metrics, "trainyard_worker_rank_folder_bytes_limit"), 99);
  EXPECT_EQ(ValueOf(metrics, "trainyard_worker_log_bytes_per_rank_limit"), 1000);
}

}  // namespace
}  // namespace trainyard::agent
