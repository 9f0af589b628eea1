// gpt2_logits SHARD HEADS TOKEN...: prints the logits of Trainyard's GPT-2 after each of the tokens, as a JSON list of
// lists. The weights come from a checkpoint's shard; their shapes determine all sizes except the number of heads.
// tests/interop/transformers_test.py compares the logits with those of the transformers library.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "checkpoint/safetensors.h"
#include "common/status_macros.h"
#include "worker/model/model_factory.h"
#include "worker/saving/state.h"

namespace trainyard {
namespace {

absl::StatusOr<at::Tensor> Logits(const std::string& shard, int64_t heads, const std::vector<int64_t>& tokens) {
  ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(shard));
  const TensorInfo *wte = file->Find("wte.weight"), *wpe = file->Find("wpe.weight");
  if (wte == nullptr || wpe == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(shard, " contains no tensor ", wte == nullptr ? "wte" : "wpe", ".weight"));
  }
  int64_t layers = 0;
  for (const TensorInfo& info : file->tensors()) {
    if (absl::StartsWith(info.name, "h.") && absl::EndsWith(info.name, ".ln_1.bias")) ++layers;
  }
  const ModelSizes config{
      .layers = layers, .heads = heads, .width = wte->shape[1], .context = wpe->shape[0], .vocabulary = wte->shape[0]};
  ASSIGN_OR_RETURN(auto model, NewModel(config, /*seed=*/0, at::kFloat, /*backed=*/false));
  RETURN_IF_ERROR(InitializeFrom(shard, nullptr, *model));
  model->Materialize();
  at::NoGradGuard no_grad;
  NoUnitHooks hooks;
  return model->Logits(at::tensor(tokens).unsqueeze(0), hooks)[0].contiguous();
}

void Print(const at::Tensor& logits) {
  std::string text;
  for (int64_t i = 0; i < logits.size(0); ++i) {
    absl::StrAppend(&text, i == 0 ? "[" : ", ", "[");
    for (int64_t j = 0; j < logits.size(1); ++j) {
      absl::StrAppendFormat(&text, "%s%.9g", j == 0 ? "" : ", ", logits[i][j].item<float>());
    }
    absl::StrAppend(&text, "]");
  }
  std::printf("%s]\n", text.c_str());
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  std::vector<int64_t> tokens;
  for (int i = 3; i < argc; ++i) tokens.push_back(std::atoll(argv[i]));
  absl::StatusOr<at::Tensor> logits = absl::InvalidArgumentError("usage: gpt2_logits SHARD HEADS TOKEN...");
  if (!tokens.empty()) logits = trainyard::Logits(argv[1], std::atoll(argv[2]), tokens);
  if (!logits.ok()) {
    std::fprintf(stderr, "%s\n", logits.status().ToString().c_str());
    return 1;
  }
  trainyard::Print(*logits);
  return 0;
}
