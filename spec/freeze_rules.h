// Which parameters are trained, and the check of `train.freeze`. Pure.
#pragma once

#include <string>

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// Whether the job trains the parameter of this name: with adapters only theirs, otherwise those that no glob of
// train.freeze matches.
bool IsTrained(const v1::Train& train, const std::string& parameter);

// Each glob must match a parameter, and at least one parameter must remain unmatched.
void CheckFreeze(const v1::Train& train, const Positions& positions, Problems* problems);

}  // namespace trainyard
