// The limits of stored events per job and for the cluster, which events are dropped first, and how dropped events are
// counted.
#include <gmock/gmock.h>

#include "coordinator/core/records.h"
#include "tests/unit/coordinator/events_harness.h"
#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(CoreKeptEvents, EventsOfAJob_AreLimited_TheFirstHundredStay_AndDroppedOnesAreCounted) {
  OneHost one;
  BringToRunning(one.harness, one.host, kJob);
  std::string first = one.harness.WatchFrom(kJob, 0).front()->SerializeAsString();
  constexpr uint64_t kReported = limits::kDurableEvents + 500;
  for (uint64_t i = 0; i < kReported; ++i) {
    v1::Fact fact;
    fact.mutable_save_failed()->set_step(1 + i % 9);
    fact.mutable_save_failed()->set_message(std::string(10'000, 'x'));
    one.host.ReportFact(Key(kJob, 1, 0), fact);
  }

  size_t stored = 0;
  for (const auto& [key, value] : one.harness.records) {
    if (key.starts_with(absl::StrCat("event/", kJob, "/"))) {
      ++stored;
      EXPECT_LT(value.size(), limits::kDurableTextBytes + 200);
    }
  }
  EXPECT_EQ(stored, limits::kDurableEvents);
  EXPECT_GT(one.harness.events_dropped[DroppedKind::kDurable], 400u);
  EXPECT_EQ(one.harness.WatchFrom(kJob, 0).front()->SerializeAsString(), first);
  EXPECT_EQ(one.harness.Get(kJob).events_dropped(), one.harness.events_dropped[DroppedKind::kDurable]);
  EXPECT_EQ(ListEventsOf(one.harness, kJob).dropped(), one.harness.events_dropped[DroppedKind::kDurable]);
  one.RestartCoordinator();
  EXPECT_EQ(one.harness.Get(kJob).events_dropped(), one.harness.events_dropped[DroppedKind::kDurable])
      << "the next coordinator knows the count, too";
}

// Regression: after eight later jobs, a finished job had only 16 events left. The kill and the restart were dropped,
// but `trainctl why` did not report that events were missing.
TEST(CoreKeptEvents, OldFinishedJob_KeepsAllEvents_ButNoReports) {
  OneHost one(1);
  BringToRunning(one.harness, one.host, kJob);
  one.host.Kill(Key(kJob, 1, 0), 9);
  one.host.Apply();
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 2, 0), 1, 10);
  for (uint64_t i = 1; i < 30; ++i) one.host.SaveFails(Key(kJob, 2, 0), i % 9 + 1);
  one.host.Finish(Key(kJob, 2, 0), 10);
  const auto before = ListEventsOf(one.harness, kJob);
  for (int i = 0; i < 12; ++i) {
    std::string id = absl::StrCat("job0000020", i);
    one.harness.Submit(MakeSpec(4), id);
    one.harness.Cancel(id);
  }

  EXPECT_EQ(TextsOf(ListEventsOf(one.harness, kJob)), TextsOf(before));
  EXPECT_THAT(TextsOf(before), Contains(HasSubstr("was killed by signal 9")));
  EXPECT_EQ(one.harness.Get(kJob).events_dropped(), 0u);
  for (const auto& [key, value] : one.harness.records) {
    EXPECT_FALSE(key.starts_with(absl::StrCat("reports/", kJob, "/"))) << key;
  }
}

TEST(CoreKeptEvents, EventsDroppedByAnEarlierVersion_AreKnownToBeMissing) {
  OneHost one;
  one.harness.Cancel(kJob);
  one.host.Apply(/*start=*/false);
  one.harness.records.erase(EventKey(JobId(kJob), 1));

  one.RestartCoordinator();

  EXPECT_GT(one.harness.Get(kJob).events_dropped(), 0u);
}

TEST(CoreKeptEvents, DroppedClusterEvents_AreCounted) {
  Harness harness;
  FakeHost host(harness, "w1", 1, 11);
  host.Attach();
  EXPECT_EQ(ListEventsOf(harness, "").dropped(), 0u);
  for (size_t i = 0; i < limits::kClusterEvents; ++i) {
    harness.Handle(HostDraining{host.session, i % 2 == 0});
  }
  EXPECT_EQ(ListEventsOf(harness, "").dropped(), harness.events_dropped[DroppedKind::kCluster]);
  EXPECT_GT(harness.events_dropped[DroppedKind::kCluster], 0u);
}

}  // namespace
}  // namespace trainyard
