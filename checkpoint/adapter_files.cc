#include "checkpoint/adapter_files.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "checkpoint/foreign_weights.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "models/adapter_config.h"
#include "models/lora_targets.h"

namespace trainyard {
namespace {

constexpr uint64_t kAdapterConfigBytesMax = 1 << 16;  // the limit of train.lora.config
// PEFT wraps the model in two modules, whose names begin the name of every parameter in its files.
constexpr char kPeftPrefix[] = "base_model.model.";

}  // namespace

absl::StatusOr<std::string> ReadAdapterConfigText(const std::string& folder) {
  return ReadRegularFile(JoinPath(folder, kAdapterConfigName), kAdapterConfigBytesMax);
}

bool HasAdapters(const Manifest& manifest) {
  return std::any_of(manifest.tensors.begin(), manifest.tensors.end(),
                     [](const ManifestTensor& tensor) { return IsAdapterName(tensor.name); });
}

std::string PeftName(const ModelDescription& model, const std::string& parameter) {
  return absl::StrCat(kPeftPrefix, HuggingFaceName(model, parameter));
}

ModelDescription AdaptersOf(const ModelDescription& model) {
  ModelDescription adapters;
  adapters.sizes = model.sizes;
  adapters.hugging_face = model.hugging_face;
  for (const ParameterDescription& parameter : model.parameters) {
    if (IsAdapterName(parameter.name)) adapters.parameters.push_back(parameter);
  }
  const int count = static_cast<int>(adapters.parameters.size());
  adapters.units = {{.name = "adapters", .first_parameter = 0, .num_parameters = count}};
  adapters.export_order.resize(adapters.parameters.size());
  std::iota(adapters.export_order.begin(), adapters.export_order.end(), 0);
  return adapters;
}

absl::StatusOr<std::unique_ptr<AdapterWeights>> AdapterWeights::Open(const std::string& folder,
                                                                     const ModelDescription& model) {
  const std::string path = JoinPath(folder, kAdapterWeightsName);
  if (!FileExists(path)) {
    const bool has_pickle = FileExists(JoinPath(folder, "adapter_model.bin"));
    return absl::NotFoundError(absl::StrCat(
        folder, " has no ", kAdapterWeightsName,
        has_pickle ? "; it has adapter_model.bin, which is another format: load the adapter with PEFT, and "
                     "save it again with save_pretrained(folder, safe_serialization=True)"
                   : "; save the adapter there with save_pretrained of PEFT"));
  }
  std::unique_ptr<AdapterWeights> adapter(new AdapterWeights);
  ASSIGN_OR_RETURN(adapter->files_, WeightFiles::Open(path));
  std::vector<WeightInfo> infos;
  for (const auto& [name, weight] : adapter->files_->weights()) {
    // A name without kPeftPrefix is kept. CheckWeights reports it as unexpected, unless it is a parameter's name.
    absl::string_view own = name;
    if (absl::ConsumePrefix(&own, kPeftPrefix)) absl::ConsumePrefix(&own, model.hugging_face.prefix);
    if (!adapter->by_name_.emplace(std::string(own), &weight).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " has ", own, " with and without the prefix '", model.hugging_face.prefix,
                       "', so it is unknown which is meant; keep only one of the two tensors"));
    }
    infos.push_back({.name = std::string(own), .dtype = weight.info.dtype, .shape = weight.info.shape});
  }
  RETURN_IF_ERROR(CheckWeights(infos, AdaptersOf(model))) << path;
  return adapter;
}

absl::Status AdapterWeights::Read(const std::string& parameter, absl::string_view dtype, absl::Span<char> out) const {
  const Weight& weight = *by_name_.at(parameter);
  return WeightFiles::ReadRange(weight, 0, CountElements(weight.info.shape).value_or(0), dtype, out);
}

}  // namespace trainyard
