// parity_losses WEIGHTS TOKENS LAYERS HEADS LR STRATEGY RANKS: trains the product's GPT-2 on given weights and batches
// and prints the losses as a JSON list. Each rank takes an equal share of a step's sequences. Both files are
// safetensors; TOKENS holds one int64 tensor `tokens`, [steps, sequences, context + 1]. Width, context and vocabulary
// follow from the weights. torch_parity_test.py compares the losses with PyTorch's.
#include <ATen/ops/from_blob.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "checkpoint/safetensors.h"
#include "common/status_macros.h"
#include "tests/parity/rank_pool.h"
#include "worker/model/gpt2.h"
#include "worker/parallel/parallelize.h"

namespace trainyard {
namespace {

at::Tensor TensorOf(const SafetensorsFile& file, const TensorInfo& info) {
  at::ScalarType type = info.dtype == "I64" ? at::kLong : at::kFloat;
  return at::from_blob(const_cast<char*>(file.Bytes(info).data()), info.shape, type).clone();
}

// "WEIGHTS TOKENS LAYERS HEADS LR STRATEGY", as arguments of a pool's rank.
absl::StatusOr<std::string> LossesMain(const PoolRank& rank, const std::string& arguments) {
  std::istringstream in(arguments);
  std::string weights_path, tokens_path, strategy_name;
  int64_t layers = 0, heads = 0;
  double lr = 0;
  in >> weights_path >> tokens_path >> layers >> heads >> lr >> strategy_name;
  ASSIGN_OR_RETURN(Strategy data_strategy, StrategyOf(strategy_name));
  ASSIGN_OR_RETURN(auto weights_file, SafetensorsFile::Open(weights_path));
  ASSIGN_OR_RETURN(auto tokens_file, SafetensorsFile::Open(tokens_path));
  std::vector<NamedTensor> weights;
  for (const TensorInfo& info : weights_file->tensors()) weights.push_back({info.name, TensorOf(*weights_file, info)});
  const TensorInfo *wte = weights_file->Find("wte.weight"), *wpe = weights_file->Find("wpe.weight");
  const TensorInfo* tokens_info = tokens_file->Find("tokens");
  if (wte == nullptr || wpe == nullptr || tokens_info == nullptr)
    return absl::InvalidArgumentError("tensors are missing");
  const at::Tensor tokens = TensorOf(*tokens_file, *tokens_info);

  const ModelSizes config{
      .layers = layers, .heads = heads, .width = wte->shape[1], .context = wpe->shape[0], .vocabulary = wte->shape[0]};
  ASSIGN_OR_RETURN(auto model, NewGpt2(config, /*seed=*/0, at::kFloat));
  RETURN_IF_ERROR(LoadParameters(weights, *model));
  ASSIGN_OR_RETURN(auto strategy, Parallelize(*model, rank.mesh, CommunicatorsOf(rank.groups),
                                              {.data = {.strategy = data_strategy, .bucket_elements = 20000},
                                               .update = {.clip_norm = 1.0}}));

  const int64_t share = tokens.size(1) / rank.mesh.world_size();
  const uint64_t count = static_cast<uint64_t>(tokens.size(1) * config.context);
  std::string losses;
  for (int64_t step = 0; step < tokens.size(0); ++step) {
    const at::Tensor batch = tokens.select(0, step).narrow(0, rank.rank * share, share);
    strategy->BeginStep(count);
    ASSIGN_OR_RETURN(at::Tensor loss, strategy->Forward([&] {
      return model->LossSum(batch.narrow(1, 0, config.context), batch.narrow(1, 1, config.context), *strategy,
                            DropoutKey{.step = static_cast<uint64_t>(step)});
    }));
    RETURN_IF_ERROR(strategy->Backward(loss, /*last=*/true));
    RETURN_IF_ERROR(strategy->FinishBackward());
    RETURN_IF_ERROR(strategy->Step({.lr = lr, .num_tokens = count}));
    at::Tensor sum = loss.detach().to(at::kDouble).reshape({1});
    RETURN_IF_ERROR(rank.groups.world->AllReduceSum(sum)->Wait());
    absl::StrAppendFormat(&losses, "%s%.17g", step == 0 ? "[" : ", ", sum.item<double>() / static_cast<double>(count));
  }
  return losses + "]";
}

absl::StatusOr<std::string> Run(char** arguments) {
  ASSIGN_OR_RETURN(Strategy strategy, StrategyOf(arguments[5]));
  ASSIGN_OR_RETURN(MeshShape mesh, DataMesh(strategy, std::atoi(arguments[6])));
  RankPool pool(std::atoi(arguments[6]));
  ASSIGN_OR_RETURN(
      std::vector<std::string> losses,
      pool.Run({.mesh = mesh, .main = "losses", .arguments = absl::StrJoin(arguments, arguments + 6, " ")}));
  return losses[0];
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  trainyard::RunAsPoolRankIfRequested(argc, argv, {{"losses", trainyard::LossesMain}});
  if (argc != 8) {
    std::fprintf(stderr, "usage: parity_losses WEIGHTS TOKENS LAYERS HEADS LR STRATEGY RANKS\n");
    return 2;
  }
  absl::StatusOr<std::string> losses = trainyard::Run(argv + 1);
  if (!losses.ok()) {
    std::fprintf(stderr, "%s\n", losses.status().ToString().c_str());
    return 1;
  }
  std::printf("%s\n", losses->c_str());
  return 0;
}
