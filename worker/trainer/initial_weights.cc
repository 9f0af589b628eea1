#include "worker/trainer/initial_weights.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/hugging_face_folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/manifest_file.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "models/adapter_config.h"
#include "models/lora_targets.h"
#include "models/model_description.h"
#include "worker/model/initial_values.h"
#include "worker/saving/sentences.h"
#include "worker/saving/state.h"

namespace trainyard {
namespace {

// The context may be shorter than the model's if no parameter depends on it, and the dropout may differ.
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

// Whether the targets `found` select the same projections as the targets of the job.
bool SelectsSameProjections(const std::vector<std::string>& found, const ModelSizes& sizes) {
  ModelSizes as_found = sizes;
  as_found.lora.targets = found;
  return DescribeModel(as_found).projections == DescribeModel(sizes).projections;
}

// The differences between the settings of the job and `found`, with which adapters were trained, each with both values:
// "train.lora.alpha was 8 and is 16 in the job". Ignores dropout, which changes only how adapters are trained.
std::vector<std::string> OtherSettings(const LoraSettings& found, const ModelSizes& sizes) {
  const LoraSettings& job = sizes.lora;
  std::vector<std::string> texts;
  const auto add = [&texts](absl::string_view key, const auto& before, const auto& now) {
    texts.push_back(absl::StrCat("train.lora.", key, " was ", before, " and is ", now, " in the job"));
  };
  if (found.rank != job.rank) add("rank", found.rank, job.rank);
  if (found.alpha != job.alpha) add("alpha", found.alpha, job.alpha);
  if (!SelectsSameProjections(found.targets, sizes)) {
    const auto list = [](const std::vector<std::string>& targets) {
      return absl::StrCat("[", absl::StrJoin(targets, ", "), "]");
    };
    add("targets", list(found.targets), list(job.targets));
  }
  return texts;
}

absl::Status CheckSameAdapter(const std::string& folder, const ModelSizes& sizes) {
  ASSIGN_OR_RETURN(const std::string text, ReadAdapterConfigText(folder));
  ASSIGN_OR_RETURN(const LoraSettings found,
                   ParseAdapterConfig(text, JoinPath(folder, kAdapterConfigName), sizes.family));
  const LoraSettings& expected = sizes.lora;
  if (OtherSettings(found, sizes).empty()) return absl::OkStatus();
  const auto text_of = [](const LoraSettings& lora) {
    return absl::StrCat("rank ", lora.rank, ", alpha ", lora.alpha, " and targets ", absl::StrJoin(lora.targets, ", "));
  };
  return absl::InvalidArgumentError(absl::StrCat(
      JoinPath(folder, kAdapterConfigName), " has ", text_of(found), ", but the job has ", text_of(expected),
      "; the file has changed since the job was submitted, or this host has another file"));
}

// `what`: what `folder` holds, "weights" or "adapters".
absl::Status CheckSameFiles(const std::string& folder, const char* what, const std::string& identity,
                            Communicator& world) {
  // No identity is empty, so none is skipped: all[i] is that of rank i.
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ShareSentences(identity, world),
                   << "while comparing the initial " << what);
  std::map<std::string, std::vector<size_t>> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank) ranks[all[rank]].push_back(rank);
  if (ranks.size() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ranks do not see the same ", what, " in ", folder, "; the ranks that agree: ",
                   absl::StrJoin(ranks, " / ",
                                 [](std::string* out, const auto& entry) {
                                   absl::StrAppend(out, entry.second.size() == 1 ? "rank " : "ranks ",
                                                   absl::StrJoin(entry.second, ", "));
                                 }),
                   "; give all hosts the same folder"));
}

// Whether `path` is a folder, but not that of a checkpoint.
bool IsModelFolder(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && !FileExists(JoinPath(path, kManifestName));
}

absl::StatusOr<std::unique_ptr<ForeignWeights>> OpenModelFolder(const StartOrder& order, Communicator& world) {
  const std::string& folder = order.config.init_from;
  const ModelSizes base = BaseSizes(order.config.model);
  RETURN_IF_ERROR(CheckSameModel(folder, base));
  ASSIGN_OR_RETURN(std::unique_ptr<ForeignWeights> weights, ForeignWeights::Open(folder, DescribeModel(base)));
  RETURN_IF_ERROR(CheckSameFiles(folder, "weights", weights->Identity(), world));
  return weights;
}

// Returns the initial values of adapters: those of train.lora.path, or `drawn`.
absl::StatusOr<InitialValues> AdapterValues(const StartOrder& order, const ModelDescription& description,
                                            InitialValues drawn, Communicator& world) {
  const std::string& folder = order.config.lora_path;
  if (folder.empty()) return drawn;
  RETURN_IF_ERROR(CheckSameAdapter(folder, order.config.model));
  ASSIGN_OR_RETURN(std::unique_ptr<AdapterWeights> opened, AdapterWeights::Open(folder, description));
  RETURN_IF_ERROR(CheckSameFiles(folder, "adapters", opened->Identity(), world));
  std::vector<std::string> names;
  for (const ParameterDescription& parameter : description.parameters) names.push_back(parameter.name);
  const std::shared_ptr<const AdapterWeights> adapter = std::move(opened);
  return InitialValues([adapter, names = std::move(names)](int parameter, const at::Tensor& out) {
    const at::Tensor values = at::empty(out.sizes(), at::TensorOptions().dtype(out.scalar_type()));
    const absl::Status read =
        adapter->Read(names[static_cast<size_t>(parameter)], DtypeOf(values.scalar_type()),
                      absl::MakeSpan(static_cast<char*>(values.mutable_data_ptr()), values.nbytes()));
    // The file was checked before; this fails only if the file has changed since.
    TORCH_CHECK(read.ok(), read.message());
    out.copy_(values);
  });
}

// Returns `adapters` for the parameters of adapters, and `others` for the others.
InitialValues Combined(const ModelDescription& description, InitialValues adapters, InitialValues others) {
  std::vector<bool> is_adapter;
  for (const ParameterDescription& parameter : description.parameters) {
    is_adapter.push_back(IsAdapterName(parameter.name));
  }
  return
      [is_adapter, adapters = std::move(adapters), others = std::move(others)](int parameter, const at::Tensor& out) {
        is_adapter[static_cast<size_t>(parameter)] ? adapters(parameter, out) : others(parameter, out);
      };
}

// Refuses adapters in the checkpoint of train.model.init_from if train.lora.path names others, or if they would compute
// something else with the settings of the job. Shapes are checked later.
absl::Status CheckAdaptersOfCheckpoint(const TrainConfig& config, const SizesOfSpec& sizes_of_spec) {
  if (config.model.lora.rank == 0 || !FileExists(JoinPath(config.init_from, kManifestName))) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, ReadManifestText(config.init_from));
  ASSIGN_OR_RETURN(const Manifest manifest, ParseManifest(text), << config.init_from);
  if (!HasAdapters(manifest)) return absl::OkStatus();
  if (!config.lora_path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.init_from,
                     " has adapters, and train.lora.path names others; remove train.lora.path, or name weights without "
                     "adapters in train.model.init_from"));
  }
  if (sizes_of_spec == nullptr || manifest.spec.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const ModelSizes found, sizes_of_spec(manifest.spec), << config.init_from);
  if (found.family != config.model.family) return absl::OkStatus();  // a model of other tensors is refused later
  const std::vector<std::string> others = OtherSettings(found.lora, config.model);
  if (others.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the adapters in ", config.init_from, " were trained with other settings: ", absl::StrJoin(others, "; "),
      ". Set the earlier values, or merge the adapters into the model by `trainctl checkpoint export` and name the "
      "exported folder"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ForeignWeights>> PrepareInitialWeights(const StartOrder& order,
                                                                      const SizesOfSpec& sizes_of_spec,
                                                                      Communicator& world, Model& model) {
  const TrainConfig& config = order.config;
  const ModelDescription description = DescribeModel(config.model);
  const InitialValues drawn = DrawInitialValues(description, config.seed);
  ASSIGN_OR_RETURN(const InitialValues adapters, AdapterValues(order, description, drawn, world), << "train.lora.path");
  if (IsModelFolder(config.init_from)) {
    ASSIGN_OR_RETURN(std::unique_ptr<ForeignWeights> weights, OpenModelFolder(order, world),
                     << "train.model.init_from");
    // The values of the folder are loaded later.
    model.set_initial_values(Combined(description, adapters, [](int, const at::Tensor& out) { out.zero_(); }));
    return weights;
  }
  model.set_initial_values(Combined(description, adapters, drawn));
  if (!config.init_from.empty()) {
    RETURN_IF_ERROR(CheckAdaptersOfCheckpoint(config, sizes_of_spec)) << "train.model.init_from";
    RETURN_IF_ERROR(InitializeFrom(config.init_from, adapters, model));
  }
  return nullptr;
}

absl::Status LoadInitialWeights(const ForeignWeights& weights, const Model& model, ParallelState& state) {
  absl::flat_hash_map<absl::string_view, int> adapters;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    if (IsAdapterName(model.parameters()[i].name)) adapters[model.parameters()[i].name] = static_cast<int>(i);
  }
  return state.LoadParameters(
      [&](const StateEntry& entry, int64_t first, int64_t count, const at::Tensor& out) -> absl::Status {
        if (const auto adapter = adapters.find(entry.name); adapter != adapters.end()) {
          const at::Tensor whole =
              at::empty(model.parameters()[static_cast<size_t>(adapter->second)].tensor.sizes(), out.options());
          model.WriteInitialValues(adapter->second, whole);
          out.copy_(whole.view(-1).narrow(0, first, count));
          return absl::OkStatus();
        }
        return weights.ReadBoxRange(entry.name, entry.box, static_cast<uint64_t>(first), static_cast<uint64_t>(count),
                                    DtypeOf(out.scalar_type()),
                                    absl::MakeSpan(static_cast<char*>(out.mutable_data_ptr()), out.nbytes()));
      });
}

}  // namespace trainyard
