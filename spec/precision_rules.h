// What `train.precision` comes to. Pure.
#pragma once

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// All five types, `type` left out: what the word stands for, what follows from `param`. The same again for a result.
v1::PrecisionPolicy ResolvedPrecision(const v1::PrecisionPolicy& policy);

// Types that cannot be together or are slow on `device`, keys of a loss scaler where there is none, two ways to clip.
void CheckPrecision(const v1::Train& train, v1::Device device, const Positions& positions, Problems* problems);

}  // namespace trainyard
