// The source of randomness of dropout.
#pragma once

#include <c10/core/Device.h>

#include "worker/model/model.h"

namespace trainyard {

// Seeds the process' default generator of `device`, which is the only one that attention can use, for the next run of
// `unit`. Each unit has its own seed, so that it draws the same values when it is run again.
void SeedDropout(const DropoutKey& key, int unit, at::Device device);

}  // namespace trainyard
