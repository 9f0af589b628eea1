// parity_losses FOLDER TOKENS LR STRATEGY RANKS: reads the model in FOLDER, which has the format of transformers,
// trains it with the engine on given batches and prints the losses as a JSON list. Each rank takes an equal share of a
// step's sequences. The safetensors file TOKENS holds one int64 tensor `tokens`, [steps, sequences, tokens + 1].
// torch_parity_test.py compares the losses with PyTorch's, tests/interop/llama_test.py with those of transformers.
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "tests/parity/hugging_face_model.h"
#include "tests/parity/rank_pool.h"
#include "worker/parallel/parallelize.h"

namespace trainyard {
namespace {

// Trains on one rank of the pool. `arguments` are "FOLDER TOKENS LR STRATEGY".
absl::StatusOr<std::string> LossesMain(const PoolRank& rank, const std::string& arguments) {
  std::istringstream in(arguments);
  std::string folder, tokens_path, strategy_name;
  double lr = 0;
  in >> folder >> tokens_path >> lr >> strategy_name;
  ASSIGN_OR_RETURN(Strategy data_strategy, StrategyOf(strategy_name));
  ASSIGN_OR_RETURN(auto model, OpenHuggingFaceModel(folder, at::kFloat));
  ASSIGN_OR_RETURN(auto tokens_file, SafetensorsFile::Open(tokens_path));
  ASSIGN_OR_RETURN(const at::Tensor tokens, ReadTensor(*tokens_file, "tokens"));
  ASSIGN_OR_RETURN(auto strategy, Parallelize(*model, rank.mesh, CommunicatorsOf(rank.groups),
                                              {.data = {.strategy = data_strategy, .bucket_elements = 20000},
                                               .update = {.clip_norm = 1.0}}));

  const int64_t share = tokens.size(1) / rank.mesh.world_size(), length = tokens.size(2) - 1;
  const uint64_t count = static_cast<uint64_t>(tokens.size(1) * length);
  std::string losses;
  for (int64_t step = 0; step < tokens.size(0); ++step) {
    const at::Tensor batch = tokens.select(0, step).narrow(0, rank.rank * share, share);
    strategy->BeginStep(count);
    ASSIGN_OR_RETURN(at::Tensor loss, strategy->Forward([&] {
      return model->LossSum(batch.narrow(1, 0, length), batch.narrow(1, 1, length), *strategy,
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
  ASSIGN_OR_RETURN(Strategy strategy, StrategyOf(arguments[3]));
  ASSIGN_OR_RETURN(MeshShape mesh, DataMesh(strategy, std::atoi(arguments[4])));
  RankPool pool(std::atoi(arguments[4]));
  ASSIGN_OR_RETURN(
      std::vector<std::string> losses,
      pool.Run({.mesh = mesh, .main = "losses", .arguments = absl::StrJoin(arguments, arguments + 4, " ")}));
  return losses[0];
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  trainyard::RunAsPoolRankIfRequested(argc, argv, {{"losses", trainyard::LossesMain}});
  if (argc != 6) {
    std::fprintf(stderr, "usage: parity_losses FOLDER TOKENS LR STRATEGY RANKS\n");
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
