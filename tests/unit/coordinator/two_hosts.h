// Two hosts with one slot each, and a job of two ranks on them, with the production core and a manual clock.
#pragma once

#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {

struct TwoHosts {
  explicit TwoHosts(bool running = true, double abandon_after_s = 600)
      : first(harness, "w1", 1, 11), second(harness, "w2", 1, 22) {
    first.Attach();
    second.Attach();
    v1::JobSpec spec = MakeSpec(2);
    spec.mutable_recovery()->set_abandon_after_s(abandon_after_s);
    spec.mutable_train()->set_steps(1'000);
    harness.Submit(spec, kJob);
    if (running) Run();
  }
  void Run() {
    uint64_t generation = Get().generation();
    for (FakeHost* host : {&first, &second}) {
      host->Apply();
      uint32_t rank = host == &second ? 1 : 0;
      host->Register(Key(kJob, generation, rank));
      host->Ready(Key(kJob, generation, rank));
    }
    ASSERT_EQ(Get().state(), v1::JOB_STATE_RUNNING) << Get().reason();
  }
  v1::Job Get() { return harness.Get(kJob); }

  Harness harness;
  FakeHost first, second;
};

}  // namespace trainyard
