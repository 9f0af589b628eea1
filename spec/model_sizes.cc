#include "spec/model_sizes.h"

namespace trainyard {

ModelSizes SizesOfModel(const v1::Model& model) {
  ModelSizes sizes{.family = ModelFamily::kGpt2,
                   .layers = model.layers(),
                   .heads = model.heads(),
                   .width = model.width(),
                   .context = model.context(),
                   .dropout = model.dropout()};
  if (model.has_vocabulary()) sizes.vocabulary = model.vocabulary();
  return sizes;
}

void SetModelSizes(const ModelSizes& sizes, v1::Model& model) {
  model.set_layers(static_cast<uint32_t>(sizes.layers));
  model.set_heads(static_cast<uint32_t>(sizes.heads));
  model.set_width(static_cast<uint32_t>(sizes.width));
  model.set_context(static_cast<uint32_t>(sizes.context));
  model.set_vocabulary(static_cast<uint32_t>(sizes.vocabulary));
  model.set_dropout(sizes.dropout);
}

}  // namespace trainyard
