#include "models/model_description.h"

#include "models/gpt2_description.h"

namespace trainyard {

std::vector<ParameterDescription> ModelDescription::ParametersInExportOrder() const {
  std::vector<ParameterDescription> ordered;
  ordered.reserve(export_order.size());
  for (int index : export_order) ordered.push_back(parameters[static_cast<size_t>(index)]);
  return ordered;
}

ModelDescription DescribeModel(const ModelSizes& sizes) {
  switch (sizes.family) {
    case ModelFamily::kGpt2:
      return DescribeGpt2(sizes);
  }
  return {};
}

uint64_t CountParameters(const ModelSizes& sizes) {
  switch (sizes.family) {
    case ModelFamily::kGpt2:
      return CountGpt2Parameters(sizes);
  }
  return 0;
}

}  // namespace trainyard
