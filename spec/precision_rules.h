// Resolves and checks `train.precision`, and the sizes of its types. Pure.
#pragma once

#include <cstdint>

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// The size of an element of this type.
uint64_t BytesOf(v1::Precision type);

// Returns all five types, without `type`: those that are given, and the others derived from `type` or `param`.
// Idempotent.
v1::PrecisionPolicy ResolvedPrecision(const v1::PrecisionPolicy& policy);

// Checks for types that cannot be combined or are slow on `device`, for keys of the loss scaler that are unused or
// contradict one another, for an eps that is 0 in the type of the optimizer, and for clipping by both norm and value.
void CheckPrecision(const v1::Train& train, v1::Device device, const Positions& positions, Problems* problems);

}  // namespace trainyard
