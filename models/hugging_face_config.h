// config.json and generation_config.json of a model folder, as the Python library transformers writes and reads them.
// Pure: checkpoint/hugging_face_folder.h reads and writes the files.
// gpt2_config.h and llama_config.h say which settings a family supports.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/model_sizes.h"

namespace trainyard {

// The text of config.json. `dtype` is the type of the weights as safetensors names it: F32, BF16.
std::string HuggingFaceConfig(const ModelSizes& sizes, absl::string_view dtype);

// Fails with InvalidArgument, which lists every problem, if config.json of the family cannot express a setting, so that
// the model could not be exported.
absl::Status CheckExportable(const ModelSizes& sizes);

// The text of another program's config.json, with the type of the weights replaced. Fails with the errors of
// ParseHuggingFaceConfig.
absl::StatusOr<std::string> ConfigWithType(absl::string_view text, absl::string_view dtype);

// The text of generation_config.json: no special tokens.
std::string HuggingFaceGenerationConfig();

// Reads the text of config.json; `path` is for messages. Fails with InvalidArgument, which lists every setting that
// differs, if the model cannot be trained here.
absl::StatusOr<ModelSizes> ParseHuggingFaceConfig(absl::string_view text, absl::string_view path);

}  // namespace trainyard
