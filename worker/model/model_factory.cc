#include "worker/model/model_factory.h"

#include "absl/strings/str_cat.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"
#include "worker/model/mlp.h"

namespace trainyard {

absl::StatusOr<std::unique_ptr<Model>> NewModel(const ModelSizes& sizes, uint64_t seed, at::ScalarType type,
                                                bool backed) {
  switch (sizes.family) {
    case ModelFamily::kGpt2:
      return NewGpt2(sizes, seed, type, backed);
    case ModelFamily::kLlama:
    case ModelFamily::kMistral:
    case ModelFamily::kQwen2:
      return NewLlama(sizes, seed, type, backed);
    case ModelFamily::kMlp:
      return NewMlp(sizes, seed, type, backed);
  }
  return absl::UnimplementedError(absl::StrCat("the engine has no model of family ", FamilyName(sizes.family)));
}

}  // namespace trainyard
