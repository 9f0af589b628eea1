#include "models/presets.h"

namespace trainyard {
namespace {

// Small models for experiments: a step of lab-tiny takes milliseconds on one core, lab-10m has 10.7 million parameters.
constexpr ModelPreset kPresets[] = {
    {.name = "lab-tiny", .sizes = {.layers = 4, .heads = 4, .width = 128, .context = 64}},
    {.name = "lab-10m", .sizes = {.layers = 6, .heads = 6, .width = 384, .context = 256}},
};

}  // namespace

absl::Span<const ModelPreset> ModelPresets() { return kPresets; }

}  // namespace trainyard
