// Resolves and checks `train.precision`. Pure.
#pragma once

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// Returns all five types, without `type`: those that are given, and the others derived from `type` or `param`.
// Idempotent.
v1::PrecisionPolicy ResolvedPrecision(const v1::PrecisionPolicy& policy);

// Checks for types that cannot be combined or are slow on `device`, for keys of an unused loss scaler, and for clipping
// by both norm and value.
void CheckPrecision(const v1::Train& train, v1::Device device, const Positions& positions, Problems* problems);

}  // namespace trainyard
