// The part of hugging_face_config.h for Llama, Mistral and Qwen2.
//
// Reads the keys of transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters), and writes those of both.
// Refuses settings that request a computation that no model here implements: another activation, other kinds of rotary
// scaling, windows that differ by layer, dropout, quantised weights.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"
#include "models/config_reader.h"
#include "models/model_sizes.h"

namespace trainyard {

nlohmann::ordered_json LlamaConfig(const ModelSizes& sizes, absl::string_view dtype);

// Accepts a sliding window that is shorter than the context, because it has no effect on sequences that are not longer
// than the window.
ModelSizes ReadLlamaConfig(ModelFamily family, ConfigReader& reader);

}  // namespace trainyard
