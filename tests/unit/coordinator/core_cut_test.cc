// A coordinator that is cut off receives nothing from any host, and must not give up a host because of the last reports
// that it received.
#include <gmock/gmock.h>

#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

RankReportsReceived PositionReport(const FakeHost& host, uint32_t rank, uint64_t step) {
  RankReportsReceived received{host.session, {}};
  v1::RankReport& report = *received.reports.add_reports();
  *report.mutable_key() = Key(kJob, 1, rank);
  report.set_phase("train");
  report.set_last_step(step);
  v1::PhaseTime& time = *report.add_phase_times();
  time.set_phase("train");
  time.set_longest_s(0.1);
  v1::CommunicatorReport& world = *report.add_communicators();
  world.set_name("world");
  world.set_started(17);
  world.set_completed(16);
  world.set_waits_in("all-reduce 17 (64 x fp32)");
  return received;
}

TEST(CoreCut, HostsThatBecomeSilentTogether_AreNotGivenUp) {
  Harness harness;
  FakeHost first(harness, "w1", 1, 11), second(harness, "w2", 1, 22);
  first.Attach();
  second.Attach();
  v1::JobSpec spec = MakeSpec(2);
  spec.mutable_train()->set_steps(1'000);
  harness.Submit(spec, kJob);
  for (FakeHost* host : {&first, &second}) {
    host->Apply();
    host->Register(Key(kJob, 1, host == &second));
    host->Ready(Key(kJob, 1, host == &second));
  }
  for (uint64_t step = 1; step <= 20; ++step) {
    harness.Handle(PositionReport(first, 0, step));
    harness.Handle(PositionReport(second, 1, step));
    harness.Advance(absl::Milliseconds(100));
  }
  ASSERT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING);

  second.Disconnect();
  harness.Advance(absl::Milliseconds(300));
  // The messages of w1 stop slightly later; its rank has not finished the step.
  harness.Handle(PositionReport(first, 0, 20));
  first.Disconnect();
  harness.Advance(absl::Seconds(30));

  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING) << harness.Get(kJob).reason();
  EXPECT_EQ(harness.Get(kJob).generation(), 1u);
}

}  // namespace
}  // namespace trainyard
