#include "worker/diagnostics/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/files.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

using testing::ElementsAre;

// A clock that advances by a microsecond per reading.
std::function<int64_t()> CountingClock() {
  return [now = int64_t{0}]() mutable { return now += 1000; };
}

TEST(EventLog, RecordsEventsInTheOrderInWhichTheyBegan_WithTheirTimes) {
  EventLog log(CountingClock());
  log.set_step(7);

  const int64_t gather = log.Begin(EventKind::kGather, "h.1");
  const int64_t forward = log.Begin(EventKind::kForward, "h.0");
  log.End(gather);
  log.Begin(EventKind::kFree, "h.0");
  log.End(forward);

  EXPECT_THAT(log.Lines(), ElementsAre("gather h.1", "forward h.0", "free h.0"));
  EXPECT_THAT(log.units(), ElementsAre("h.1", "h.0"));
  EXPECT_EQ(log.events()[0].began_ns, 1000);
  EXPECT_EQ(log.events()[0].ended_ns, 3000);
  EXPECT_EQ(log.events()[1].ended_ns, 5000);
  EXPECT_EQ(log.events()[2].ended_ns, 4000);
  EXPECT_EQ(log.events()[2].step, 7u);
}

TEST(EventLog, CountsEventsBeyondItsLimit) {
  EventLog log(CountingClock(), /*limit=*/2);
  for (int i = 0; i < 5; ++i) log.End(log.Begin(EventKind::kStep, "model"));

  EXPECT_EQ(log.events().size(), 2u);
  EXPECT_EQ(log.num_dropped(), 3u);
  EXPECT_EQ(nlohmann::json::parse(ChromeTrace(log, 0, "w"))["otherData"]["events_dropped"], 3);
}

TEST(EventLog, NullLog_IsAllowed) { EndEvent(nullptr, BeginEvent(nullptr, EventKind::kStep, "model")); }

TEST(ChromeTrace, ShowsComputationAndCommunicationInSeparateRows) {
  EventLog log(CountingClock());
  log.set_step(3);
  const int64_t gather = log.Begin(EventKind::kGather, "h.1");
  const int64_t forward = log.Begin(EventKind::kForward, "a \"b\"");
  log.End(gather);
  log.End(forward);
  log.Begin(EventKind::kFree, "h.1");
  log.Begin(EventKind::kStep, "model");
  TemporaryFolder folder;

  ASSERT_TRUE(WriteTrace(log, folder.path(), /*rank=*/3, "w1").ok());

  EXPECT_EQ(TracePath("/run", 3), "/run/diagnostics/trace-rank-00003.json");
  const nlohmann::json trace = nlohmann::json::parse(*ReadFile(TracePath(folder.path(), 3)));
  EXPECT_EQ(trace["otherData"]["rank"], 3);
  std::vector<std::string> found;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "M") continue;
    EXPECT_EQ(event["args"]["step"], 3);
    found.push_back(event["ph"].get<std::string>() + " " + event["name"].get<std::string>() + " " +
                    event["tid"].dump() + " at " + event["ts"].dump() +
                    (event.contains("dur") ? " for " + event["dur"].dump() : "") +
                    (event["args"].contains("unfinished") ? " unfinished" : ""));
  }
  EXPECT_THAT(found, ElementsAre("b gather h.1 2 at 1.0", "e gather h.1 2 at 3.0", "X forward a \"b\" 1 at 2.0 for 2.0",
                                 "i free h.1 1 at 5.0", "X step model 1 at 6.0 for 0.0 unfinished"));
}

}  // namespace
}  // namespace trainyard
