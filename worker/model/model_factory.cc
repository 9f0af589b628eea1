#include "worker/model/model_factory.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"
#include "worker/model/mlp.h"

namespace trainyard {

absl::StatusOr<std::unique_ptr<Model>> NewModelPart(const ModelSizes& sizes, const ModelPart& part, uint64_t seed,
                                                    at::ScalarType type, TensorGroup* tensor_group) {
  switch (sizes.family) {
    case ModelFamily::kGpt2:
      return NewGpt2(sizes, part, seed, type, tensor_group);
    case ModelFamily::kLlama:
    case ModelFamily::kMistral:
    case ModelFamily::kQwen2:
      return NewLlama(sizes, part, seed, type, tensor_group);
    case ModelFamily::kMlp:
      return NewMlp(sizes, seed, type);
  }
  return absl::UnimplementedError(absl::StrCat("the engine has no model of family ", FamilyName(sizes.family)));
}

absl::StatusOr<std::unique_ptr<Model>> NewModel(const ModelSizes& sizes, uint64_t seed, at::ScalarType type,
                                                bool backed) {
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                   NewModelPart(sizes, WholeModel(sizes), seed, type, /*tensor_group=*/nullptr));
  if (backed) model->Materialize();
  return model;
}

}  // namespace trainyard
