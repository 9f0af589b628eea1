// Applies a named preset (models/presets.h) to a job. It sets only the keys of `model` that are not given. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

std::vector<std::string> PresetNames();

// Fills the model of `spec` from its preset, if it names one. An unknown name is a problem. The name stays in the spec.
void ApplyPreset(const Positions& positions, v1::JobSpec* spec, Problems* problems);

}  // namespace trainyard
