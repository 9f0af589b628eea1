// Applies `train.model.config`, the text of a config.json, to the sizes of `train.model`. Pure.
#pragma once

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// Sets the sizes of the model that are not given. Adds a problem if the text does not describe a model that can be
// trained, one for each given size that differs from the text, and one if `train.model.path` is given without the text.
// If the sizes cannot be read, adds their keys to `positions`, so that they are not reported as missing, too.
void ApplyModelConfig(Positions* positions, v1::JobSpec* spec, Problems* problems);

}  // namespace trainyard
