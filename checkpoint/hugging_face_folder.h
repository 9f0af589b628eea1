// Reads a model's folder in the form that the Hugging Face hub publishes and the Python library transformers writes and
// opens: config.json and one or several files of weights. model_export.h writes such a folder. models/ defines the
// names of its weights and the supported settings of config.json. Matrices keep their layout: none is transposed.
// Stateless.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/file_system.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/reader.h"
#include "models/model_sizes.h"

namespace trainyard {

inline constexpr char kConfigName[] = "config.json";

// Returns the text of config.json of such a folder. Fails with NotFound if there is none, and with ResourceExhausted if
// it is too long.
absl::StatusOr<std::string> ReadConfigText(const std::string& folder);

// Reads config.json of such a folder. Fails with NotFound if there is none, and with the errors of
// ParseHuggingFaceConfig.
absl::StatusOr<ModelSizes> ReadModelConfig(const std::string& folder);

// Writes the weights of `folder` as a checkpoint of step 0 below `run_folder`, with moments that are zero; 16-bit
// weights become fp32, which holds them exactly. `manifest` contains the job and its spec. Fails with InvalidArgument
// if the weights do not fit `sizes` (the message lists every missing and unexpected name and every wrong shape), with
// AlreadyExists if the run folder has checkpoints, and with the errors of reading and writing the files.
absl::StatusOr<SavedCheckpoint> ImportModel(const std::string& folder, const ModelSizes& sizes,
                                            const std::string& run_folder, Manifest manifest, FileSystem& file_system);

}  // namespace trainyard
