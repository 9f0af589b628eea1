// The metrics of the process are documented, and have the values of this process.
#include "common/process_metrics.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/files.h"

namespace trainyard {
namespace {

std::map<std::string, double> Collected() {
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : CollectProcessMetrics()) {
    values[family.name] = family.metric.at(0).counter.value + family.metric.at(0).gauge.value;
  }
  return values;
}

TEST(ProcessMetrics, DocumentedMetrics_AreThoseThatTheCodeServes) {
  auto text = ReadFile("docs/metrics.md");
  ASSERT_TRUE(text.ok()) << text.status();
  std::set<std::string> documented;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (absl::StartsWith(line, "| `process_")) documented.insert(absl::StrReplaceAll(line, {{"| |", "|  |"}}));
  }
  std::set<std::string> served;
  for (const MetricSpec& spec : ProcessMetricSpecs()) {
    served.insert(absl::StrCat("| `", spec.name, "` | ", MetricKindName(spec.kind), " |  | ", spec.help, " |"));
    EXPECT_EQ(Collected().count(spec.name), 1) << spec.name;
  }
  EXPECT_EQ(documented, served);
}

TEST(ProcessMetrics, HaveTheValuesOfThisProcess) {
  std::map<std::string, double> before = Collected();
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const std::vector<char> block(5 << 20, 'x');
  std::map<std::string, double> after = Collected();
  for (int end : pipe_ends) close(end);

  EXPECT_EQ(after["process_open_fds"], before["process_open_fds"] + 2);
  EXPECT_GE(before["process_threads"], 1);
  EXPECT_GT(after["process_allocated_memory_bytes"], before["process_allocated_memory_bytes"] + (5 << 20) - 1);
  EXPECT_GT(before["process_resident_memory_bytes"], 1e6);
  EXPECT_GT(before["process_virtual_memory_bytes"], before["process_resident_memory_bytes"]);
  EXPECT_GE(before["process_max_fds"], 64);
  EXPECT_GE(after["process_cpu_seconds_total"], before["process_cpu_seconds_total"]);
  const double age_s = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()) - before["process_start_time_seconds"];
  EXPECT_GT(age_s, -2) << "the time of the boot has a resolution of one second";
  EXPECT_LT(age_s, 600);
}

}  // namespace
}  // namespace trainyard
