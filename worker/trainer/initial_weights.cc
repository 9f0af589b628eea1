#include "worker/trainer/initial_weights.h"

#include <sys/stat.h>

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/hugging_face_folder.h"
#include "checkpoint/manifest_file.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "models/model_description.h"
#include "worker/saving/sentences.h"
#include "worker/saving/state.h"

namespace trainyard {
namespace {

// The context may be shorter than the model's, where no parameter depends on it; dropout is not of the model.
absl::Status CheckSameModel(const std::string& folder, const ModelSizes& sizes) {
  ASSIGN_OR_RETURN(ModelSizes found, ReadModelConfig(folder));
  found.dropout = sizes.dropout;
  if (IsLlamaGraph(sizes.family) && sizes.context < found.context) found.context = sizes.context;
  if (found == sizes) return absl::OkStatus();
  const std::string expected_text = SizesText(sizes), found_text = SizesText(found);
  return absl::InvalidArgumentError(absl::StrCat(
      folder, "/config.json describes ", found_text, ", but the job trains ",
      expected_text == found_text ? "one with other settings (rope, norm_eps, biases or window)" : expected_text,
      "; remove the sizes from train.model and name the folder in train.model.path"));
}

absl::Status CheckSameFiles(const StartOrder& order, const std::string& identity, Communicator& world) {
  // No identity is empty, so there is one for each rank.
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ShareSentences(identity, world),
                   << "while comparing the initial weights");
  std::map<std::string, std::vector<size_t>> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank) ranks[all[rank]].push_back(rank);
  if (ranks.size() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ranks do not see the same weights in ", order.config.init_from, ": ",
                   absl::StrJoin(ranks, ", others ",
                                 [](std::string* out, const auto& entry) {
                                   absl::StrAppend(out, entry.second.size() == 1 ? "rank " : "ranks ",
                                                   absl::StrJoin(entry.second, ", "));
                                 }),
                   "; give all hosts the same folder"));
}

}  // namespace

bool IsModelFolder(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && !FileExists(JoinPath(path, kManifestName));
}

absl::StatusOr<std::unique_ptr<ForeignWeights>> OpenInitialWeights(const StartOrder& order, Communicator& world) {
  const std::string& folder = order.config.init_from;
  RETURN_IF_ERROR(CheckSameModel(folder, order.config.model)) << "train.model.init_from";
  ASSIGN_OR_RETURN(std::unique_ptr<ForeignWeights> weights,
                   ForeignWeights::Open(folder, DescribeModel(order.config.model)), << "train.model.init_from");
  RETURN_IF_ERROR(CheckSameFiles(order, weights->Identity(), world)) << "train.model.init_from";
  return weights;
}

absl::Status LoadInitialWeights(const ForeignWeights& weights, ParallelState& state) {
  return state.Load([&](absl::string_view role, absl::string_view name, int64_t first, int64_t count,
                        const at::Tensor& out) -> absl::Status {
    if (role != kParameterRole) {
      out.zero_();
      return absl::OkStatus();
    }
    return weights.ReadRange(std::string(name), static_cast<uint64_t>(first), static_cast<uint64_t>(count),
                             DtypeOf(out.scalar_type()),
                             absl::MakeSpan(static_cast<char*>(out.mutable_data_ptr()), out.nbytes()));
  });
}

}  // namespace trainyard
