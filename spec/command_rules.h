// The rules of `command`, which ValidateJob checks. Pure.
#pragma once

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// Adds the problems of `command` that the rules of its fields (options.proto) do not find: those of the program, the
// folder, the form of the variables and the numbers of ranks.
void CheckCommandKeys(const v1::JobSpec& spec, const Positions& positions, Problems* problems);

}  // namespace trainyard
