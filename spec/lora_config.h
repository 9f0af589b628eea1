// Applies `train.lora.config`, the text of adapter_config.json of PEFT, to the other keys of `train.lora`. Pure.
#pragma once

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// Sets rank, alpha, dropout and targets, unless they are given. Adds a problem if the text describes an adapter that
// cannot be trained here, one for each given key that differs from the text (dropout may differ), and one if
// `train.lora.path` is given without the text. REQUIRES: ApplyModelConfig has set the family.
void ApplyLoraConfig(const Positions& positions, v1::JobSpec* spec, Problems* problems);

}  // namespace trainyard
