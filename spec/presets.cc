#include "spec/presets.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plain_text.h"
#include "common/strict_yaml.h"

namespace trainyard {
namespace {

struct Preset {
  const char* name;
  uint32_t layers, heads, width, context;
};

// Small sizes for a laboratory: lab-tiny steps in milliseconds on one core, lab-10m has 10.7 million parameters.
constexpr Preset kPresets[] = {
    {.name = "lab-tiny", .layers = 4, .heads = 4, .width = 128, .context = 64},
    {.name = "lab-10m", .layers = 6, .heads = 6, .width = 384, .context = 256},
};

}  // namespace

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

void ApplyPreset(const Positions& positions, v1::JobSpec* spec, Problems* problems) {
  if (!spec->train().model().has_preset()) return;
  if (!WhyNotPlainText(spec->train().model().preset()).empty()) return;  // the rules of the schema refuse it
  v1::Model& model = *spec->mutable_train()->mutable_model();
  for (const Preset& preset : kPresets) {
    if (model.preset() != preset.name) continue;
    if (!model.has_layers()) model.set_layers(preset.layers);
    if (!model.has_heads()) model.set_heads(preset.heads);
    if (!model.has_width()) model.set_width(preset.width);
    if (!model.has_context()) model.set_context(preset.context);
    return;
  }
  std::string nearest = NearestName(model.preset(), PresetNames());
  problems->AddError(positions, "train.model.preset",
                     absl::StrCat("no preset is called '", model.preset().substr(0, 60), "'",
                                  nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?"),
                                  " There are: ", absl::StrJoin(PresetNames(), ", ")));
}

}  // namespace trainyard
