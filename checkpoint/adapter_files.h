// Low-rank adapters in the folder form of the Python library PEFT: adapter_config.json and adapter_model.safetensors.
// An adapter's parameter "h.0.attn.c_attn.lora_A.weight" is the tensor
// "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight" there, in the same shape.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "checkpoint/manifest.h"
#include "checkpoint/weight_files.h"
#include "models/model_description.h"

namespace trainyard {

inline constexpr char kAdapterWeightsName[] = "adapter_model.safetensors";

// The text of adapter_config.json of such a folder. Fails with NotFound if there is none, and with ResourceExhausted if
// it is too long.
absl::StatusOr<std::string> ReadAdapterConfigText(const std::string& folder);

// Whether a checkpoint contains low-rank adapters.
bool HasAdapters(const Manifest& manifest);

// The name of an adapter's parameter in such a folder.
std::string PeftName(const ModelDescription& model, const std::string& parameter);

// Describes only the adapters' parameters of `model`, in one unit, for checks of files that contain nothing else.
ModelDescription AdaptersOf(const ModelDescription& model);

// The adapters of a folder. Immutable once opened, and thread-safe.
class AdapterWeights {
 public:
  // Fails with NotFound if the folder has no adapter_model.safetensors, with the errors of SafetensorsFile::Open, and
  // with InvalidArgument, which lists every missing and unexpected name and every wrong shape and type, if the tensors
  // are not the adapters of `model`.
  static absl::StatusOr<std::unique_ptr<AdapterWeights>> Open(const std::string& folder, const ModelDescription& model);

  // Writes all values of a parameter to `out`, in type `dtype`. Fails with the errors of WeightFiles::ReadRange.
  // REQUIRES: `parameter` is an adapter's parameter of the model.
  absl::Status Read(const std::string& parameter, absl::string_view dtype, absl::Span<char> out) const;

  // The hash that WeightFiles::Identity computes over the adapters' files.
  std::string Identity() const { return files_->Identity(); }

 private:
  AdapterWeights() = default;

  std::unique_ptr<WeightFiles> files_;
  std::map<std::string, const Weight*> by_name_;  // by the names of ModelDescription
};

}  // namespace trainyard
