// Reduces a failing scenario: leaves out faults, operations, jobs, hosts and ranks, as long as the same invariant is
// broken.
#pragma once

#include "tests/sim/world.h"

namespace trainyard::sim {

struct Shrunk {
  Scenario scenario;
  Result result;  // with its trace
  int runs = 0;
};

// REQUIRES: the scenario breaks an invariant with these options. Makes at most `runs_max` runs.
Shrunk Shrink(Scenario scenario, WorldOptions options, int runs_max = 400);

}  // namespace trainyard::sim
