// adapter_config.json of a folder that the Python library PEFT writes and reads: the settings of low-rank adapters.
// Pure: reading and writing the files is checkpoint/adapter_files.h.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/model_description.h"

namespace trainyard {

inline constexpr char kAdapterConfigName[] = "adapter_config.json";

// Reads the text; `path` is for messages, `family`: of the model. With use_rslora, alpha is adapted so that the
// factor alpha / rank is PEFT's. Fails with InvalidArgument, which lists every setting that changes the computation in
// a way that is not supported here, and every unknown setting with a value.
absl::StatusOr<LoraSettings> ParseAdapterConfig(absl::string_view text, absl::string_view path, ModelFamily family);

// The text for the adapters of `model`. `base`: the folder or name of the model without adapters; empty: unknown.
std::string AdapterConfigText(const ModelDescription& model, absl::string_view base);

}  // namespace trainyard
