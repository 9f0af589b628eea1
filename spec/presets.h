// Named sizes of models for `train.model.preset` (models/presets.h). Pure.
#pragma once

#include <string>
#include <vector>

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

std::vector<std::string> PresetNames();

// If `spec` names a preset, sets those keys of train.model that the preset decides and the job does not give, and keeps
// the name. Adds an unknown name to `problems`. For family mlp, also sets the number of heads to 1 if the job does not
// give it, because later checks require the number although an MLP has no heads.
void ApplyPreset(const Positions& positions, v1::JobSpec* spec, Problems* problems);

}  // namespace trainyard
