// What `train.precision` comes to. Pure.
#pragma once

#include "trainyard/v1/job.pb.h"

namespace trainyard {

// All five types, `type` left out: what the word stands for, what follows from `param`. The same again for a result.
v1::PrecisionPolicy ResolvedPrecision(const v1::PrecisionPolicy& policy);

}  // namespace trainyard
