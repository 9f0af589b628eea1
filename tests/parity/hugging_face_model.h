// Reads models from folders of Hugging Face's transformers library, for programs that compare the engine with it.
// Stateless.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/safetensors.h"
#include "worker/model/model.h"

namespace trainyard {

// Returns a copy of a tensor of type F32, F64 or I64.
absl::StatusOr<at::Tensor> ReadTensor(const SafetensorsFile& file, const std::string& name);

// Returns the engine's model for config.json and model.safetensors of `folder`. The names of the weights may lack the
// prefix of the model family.
absl::StatusOr<std::unique_ptr<Model>> OpenHuggingFaceModel(const std::string& folder, at::ScalarType type);

// Writes the tensors as fp64.
absl::Status WriteTensors(const std::map<std::string, at::Tensor>& tensors, const std::string& path);

}  // namespace trainyard
