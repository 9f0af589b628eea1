#include "models/mlp_description.h"

#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "models/description_builder.h"

namespace trainyard {
namespace {

void AddLayer(DescriptionBuilder& builder, const std::string& name, int64_t in, int64_t out) {
  builder.AddMatrix(name + ".weight", out, in, std::sqrt(2.0 / static_cast<double>(in)));
  builder.AddZeros(name + ".bias", out);
}

}  // namespace

ModelDescription DescribeMlp(const ModelSizes& sizes) {
  DescriptionBuilder builder(sizes, /*names=*/{});
  builder.BeginUnit("root");
  AddLayer(builder, "head", sizes.width, sizes.vocabulary);
  for (int64_t layer = 0; layer < sizes.layers; ++layer) {
    const std::string name = absl::StrCat("layers.", layer);
    builder.BeginUnit(name);
    AddLayer(builder, name, layer == 0 ? sizes.context : sizes.width, sizes.width);
  }
  ModelDescription model = builder.TakeModel();
  model.export_order.resize(model.parameters.size());
  std::iota(model.export_order.begin(), model.export_order.end(), 0);
  return model;
}

uint64_t CountMlpParameters(const ModelSizes& sizes) {
  const auto size = [](int64_t value) { return static_cast<uint64_t>(value); };
  const uint64_t width = size(sizes.width);
  return (size(sizes.context) + 1) * width + (size(sizes.layers) - 1) * (width + 1) * width +
         (width + 1) * size(sizes.vocabulary);
}

}  // namespace trainyard
