// model_gradients FOLDER TOKENS OUT: reads the model in FOLDER, which transformers has written, and runs the engine on
// it in fp32 and one process. The input is the int64 tensor `tokens`, [sequences, tokens + 1], of the safetensors file
// TOKENS. Writes to OUT the tensors `logits`, `loss` (the mean over the tokens) and the gradient of each parameter,
// which tests/interop/llama_test.py compares.
#include <ATen/TensorOperators.h>

#include <cstdio>
#include <map>

#include "common/status_macros.h"
#include "tests/parity/hugging_face_model.h"

namespace trainyard {
namespace {

absl::Status Run(const std::string& folder, const std::string& tokens_path, const std::string& out) {
  ASSIGN_OR_RETURN(const auto model, OpenHuggingFaceModel(folder, at::kFloat));
  ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(tokens_path));
  ASSIGN_OR_RETURN(const at::Tensor tokens, ReadTensor(*file, "tokens"));
  const int64_t length = tokens.size(1) - 1;
  if (length > model->context()) return absl::InvalidArgumentError("the sequences are longer than the context");
  const at::Tensor inputs = tokens.narrow(1, 0, length), targets = tokens.narrow(1, 1, length);
  NoUnitHooks hooks;
  std::map<std::string, at::Tensor> results;
  results["logits"] = model->Logits(inputs, hooks);
  results["loss"] = model->LossSum(inputs, targets, hooks, std::nullopt) / static_cast<double>(targets.numel());
  results["loss"].backward();
  for (const NamedTensor& parameter : model->parameters()) results[parameter.name] = parameter.tensor.grad();
  return WriteTensors(results, out);
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  absl::Status status = absl::InvalidArgumentError("usage: model_gradients FOLDER TOKENS OUT");
  if (argc == 4) status = trainyard::Run(argv[1], argv[2], argv[3]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
