// GPT-2's part of hugging_face_config.h.
//
// GPT-2 is trained here with GELU in its tanh form (gelu_new), an inner width of 4 x width, layer norms with epsilon
// 1e-5, attention scaled by the head's size alone, the head tied to the token embedding, and one probability of dropout
// everywhere. A config.json with other settings is rejected.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"
#include "models/config_reader.h"
#include "models/model_sizes.h"

namespace trainyard {

nlohmann::ordered_json Gpt2Config(const ModelSizes& sizes, absl::string_view dtype);

ModelSizes ReadGpt2Config(ConfigReader& reader);

}  // namespace trainyard
