// parity_losses WEIGHTS TOKENS LAYERS HEADS LR: trains a GPT-2 of the product on given weights and batches, in one
// process, and prints the losses as a JSON list. Both files are safetensors; TOKENS holds one int64 tensor `tokens`,
// [steps, sequences, context + 1]. Width, context and vocabulary follow from the weights. The other side is
// torch_parity_test.py.
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include <cstdio>
#include <cstdlib>

#include "common/status_macros.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/collectives/communicator.h"
#include "worker/model/gpt2.h"
#include "worker/parallel/parallelize.h"

namespace trainyard {
namespace {

at::Tensor TensorOf(const SafetensorsFile& file, const TensorInfo& info) {
  at::ScalarType type = info.dtype == "I64" ? at::kLong : at::kFloat;
  return at::from_blob(const_cast<char*>(file.Bytes(info).data()), info.shape, type).clone();
}

absl::StatusOr<std::vector<double>> Losses(char** words) {
  ASSIGN_OR_RETURN(auto weights_file, SafetensorsFile::Open(words[0]));
  ASSIGN_OR_RETURN(auto tokens_file, SafetensorsFile::Open(words[1]));
  std::vector<NamedTensor> weights;
  for (const TensorInfo& info : weights_file->tensors()) weights.push_back({info.name, TensorOf(*weights_file, info)});
  const TensorInfo *wte = weights_file->Find("wte.weight"), *wpe = weights_file->Find("wpe.weight");
  const TensorInfo* tokens_info = tokens_file->Find("tokens");
  if (wte == nullptr || wpe == nullptr || tokens_info == nullptr)
    return absl::InvalidArgumentError("tensors are missing");
  at::Tensor tokens = TensorOf(*tokens_file, *tokens_info);
  double lr = std::atof(words[4]);

  Gpt2Config config{.layers = std::atoi(words[2]),
                    .heads = std::atoi(words[3]),
                    .width = wte->shape[1],
                    .context = wpe->shape[0],
                    .vocabulary = wte->shape[0]};
  ASSIGN_OR_RETURN(auto model, NewGpt2(config, /*seed=*/0, at::kFloat));
  RETURN_IF_ERROR(LoadParameters(weights, *model));
  ASSIGN_OR_RETURN(auto communicator, NewGlooCommunicator({}));
  ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create({}, 1));
  ASSIGN_OR_RETURN(auto strategy, Parallelize(*model, mesh, *communicator, {.clip_norm = 1.0}));

  std::vector<double> losses;
  for (int64_t step = 0; step < tokens.size(0); ++step) {
    at::Tensor batch = tokens.select(0, step);
    int64_t count = batch.size(0) * config.context;
    at::Tensor loss = model->LossSum(batch.narrow(1, 0, config.context), batch.narrow(1, 1, config.context), *strategy,
                                     DropoutKey{.step = static_cast<uint64_t>(step)});
    strategy->Backward(loss, /*last=*/true);
    RETURN_IF_ERROR(strategy->FinishBackward());
    strategy->Step({.lr = lr, .num_tokens = static_cast<uint64_t>(count)});
    losses.push_back(loss.item<double>() / static_cast<double>(count));
  }
  return losses;
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: parity_losses WEIGHTS TOKENS LAYERS HEADS LR\n");
    return 2;
  }
  at::set_num_threads(1);
  absl::StatusOr<std::vector<double>> losses = trainyard::Losses(argv + 1);
  if (!losses.ok()) {
    std::fprintf(stderr, "%s\n", losses.status().ToString().c_str());
    return 1;
  }
  for (size_t i = 0; i < losses->size(); ++i) std::printf("%s%.17g", i == 0 ? "[" : ", ", (*losses)[i]);
  std::printf("]\n");
  return 0;
}
