#include "spec/presets.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/nearest_name.h"
#include "common/plain_text.h"
#include "common/strict_yaml.h"
#include "models/presets.h"
#include "spec/model_sizes.h"

namespace trainyard {

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const ModelPreset& preset : ModelPresets()) names.push_back(preset.name);
  return names;
}

void ApplyPreset(const Positions& positions, v1::JobSpec* spec, Problems* problems) {
  if (spec->train().model().family() == v1::MODEL_FAMILY_MLP && positions.count("train.model.heads") == 0) {
    spec->mutable_train()->mutable_model()->set_heads(1);  // required for the other families; here it has no meaning
  }
  if (!spec->train().model().has_preset()) return;
  if (!WhyNotPlainText(spec->train().model().preset()).empty()) return;  // DropInvalid reports it
  v1::Model& model = *spec->mutable_train()->mutable_model();
  for (const ModelPreset& preset : ModelPresets()) {
    if (model.preset() != preset.name) continue;
    v1::Model filled;
    SetModelSizes(preset.sizes, filled);
    // A preset decides neither the dropout nor a vocabulary that depends on the tokenizer; GPT-2 is the default family.
    filled.clear_dropout();
    if (!IsLlamaGraph(preset.sizes.family)) filled.clear_family();
    if (filled.vocabulary() == ModelSizes().vocabulary) filled.clear_vocabulary();
    filled.MergeFrom(model);
    model = std::move(filled);
    return;
  }
  std::string nearest = NearestName(model.preset(), PresetNames());
  problems->AddError(positions, "train.model.preset",
                     absl::StrCat("no preset is called '", model.preset().substr(0, 60), "'",
                                  nearest.empty() ? "." : absl::StrCat("; did you mean '", nearest, "'?"),
                                  " The presets are ", absl::StrJoin(PresetNames(), ", ")));
}

}  // namespace trainyard
