// Models in folders of transformers, for programs that compare them with the engine's. Stateless.
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

// A copy of a tensor of type F32, F64 or I64.
absl::StatusOr<at::Tensor> ReadTensor(const SafetensorsFile& file, const std::string& name);

// The engine's model for config.json and model.safetensors of `folder`; the names of the weights may lack their prefix.
absl::StatusOr<std::unique_ptr<Model>> OpenHuggingFaceModel(const std::string& folder, at::ScalarType type);

// Writes the tensors as fp64.
absl::Status WriteTensors(const std::map<std::string, at::Tensor>& tensors, const std::string& path);

}  // namespace trainyard
