// Makes a failing scenario smaller: leaves out faults, operations and jobs, then shortens what is left, for as long as
// the same invariant is broken.
#pragma once

#include "tests/sim/world.h"

namespace trainyard::sim {

struct Shrunk {
  Scenario scenario;
  Result result;  // with its trace
  int runs = 0;
};

// REQUIRES: the scenario breaks an invariant under these options. At most `runs_max` runs are made.
Shrunk Shrink(Scenario scenario, WorldOptions options, int runs_max = 400);

}  // namespace trainyard::sim
