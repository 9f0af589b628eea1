#include "models/model_description.h"

#include "absl/strings/str_cat.h"
#include "models/gpt2_description.h"
#include "models/llama_description.h"
#include "models/lora_targets.h"
#include "models/mlp_description.h"

namespace trainyard {

std::vector<ParameterDescription> ModelDescription::ParametersInExportOrder() const {
  std::vector<ParameterDescription> ordered;
  ordered.reserve(export_order.size());
  for (int index : export_order) ordered.push_back(parameters[static_cast<size_t>(index)]);
  return ordered;
}

std::string HuggingFaceName(const ModelDescription& model, const std::string& name) {
  return name == model.hugging_face.head ? name : absl::StrCat(model.hugging_face.prefix, name);
}

ModelDescription DescribeModel(const ModelSizes& sizes) {
  switch (sizes.family) {
    case ModelFamily::kGpt2:
      return DescribeGpt2(sizes);
    case ModelFamily::kLlama:
    case ModelFamily::kMistral:
    case ModelFamily::kQwen2:
      return DescribeLlama(sizes);
    case ModelFamily::kMlp:
      return DescribeMlp(sizes);
  }
  return {};
}

uint64_t CountParameters(const ModelSizes& sizes) {
  const uint64_t adapters = CountAdapterParameters(sizes);
  switch (sizes.family) {
    case ModelFamily::kGpt2:
      return CountGpt2Parameters(sizes) + adapters;
    case ModelFamily::kLlama:
    case ModelFamily::kMistral:
    case ModelFamily::kQwen2:
      return CountLlamaParameters(sizes) + adapters;
    case ModelFamily::kMlp:
      return CountMlpParameters(sizes);
  }
  return 0;
}

ModelSizes BaseSizes(ModelSizes sizes) {
  sizes.lora = {};
  return sizes;
}

}  // namespace trainyard
