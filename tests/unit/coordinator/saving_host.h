// One host with two slots, a job of two ranks on it, for tests of saves. With the production core on a manual clock.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {

struct SavingHost {
  explicit SavingHost(const v1::JobSpec& spec = MakeSpec(2)) : host(harness, "w1", 2, 11) {
    host.Attach();
    harness.Submit(spec, kJob);
  }
  v1::Job Get() { return harness.Get(kJob); }
  // Returns the grants that the rank gets, each as "STEP.gGENERATION HASH", followed by " refused" for a refusal.
  std::vector<std::string> Grants(int rank = 0) {
    std::vector<std::string> grants;
    if (rank >= host.desired().trainers_size()) return grants;
    for (const v1::CheckpointGrant& grant : host.desired().trainers(rank).grants()) {
      grants.push_back(absl::StrCat(grant.step(), ".g", grant.generation(), " ", grant.manifest_hash(),
                                    grant.refused() ? " refused" : ""));
    }
    return grants;
  }
  void RestartCoordinator() {
    host.Disconnect();
    harness.Restart();
    host.Attach();
  }
  // Kills rank 1; the next generation is placed.
  void Fail() {
    host.Kill(Key(kJob, Get().generation(), 1), 9);
    host.Apply(/*start=*/false);
    harness.Advance(absl::Seconds(1));  // a failure without progress is not followed by an immediate restart
    ASSERT_EQ(Get().state(), v1::JOB_STATE_PLACED);
  }
  void Leave(uint64_t step) {
    for (uint32_t rank = 0; rank < 2; ++rank) host.Finish(Key(kJob, Get().generation(), rank), step, true);
  }

  Harness harness;
  FakeHost host;
};

}  // namespace trainyard
