#include "worker/saving/state.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_writer.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "models/lora_targets.h"

namespace trainyard {
namespace {

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr TypeName kTypes[] = {{at::kFloat, "F32"}, {at::kDouble, "F64"}, {at::kHalf, "F16"}, {at::kBFloat16, "BF16"}};

// Returns null if weights cannot have this type.
const TypeName* FindType(absl::string_view name) {
  for (const TypeName& known : kTypes) {
    if (known.name == name) return &known;
  }
  return nullptr;
}

}  // namespace

const char* DtypeOf(at::ScalarType type) {
  for (const TypeName& known : kTypes) {
    if (known.type == type) return known.name;
  }
  return "";
}

namespace {

TensorHeader HeaderOf(const StateEntry& entry) {
  return {.name = entry.name, .role = entry.role, .dtype = DtypeOf(entry.type), .shape = entry.shape};
}

}  // namespace

std::vector<TensorHeader> StateHeaders(const std::vector<StateEntry>& entries) {
  std::vector<TensorHeader> headers;
  absl::flat_hash_set<std::string> seen;
  for (const StateEntry& entry : entries) {
    if (seen.insert(ShardTensorName(entry.role, entry.name)).second) headers.push_back(HeaderOf(entry));
  }
  return headers;
}

absl::Status AddOwnState(ParallelState& state, StateRoles roles, DeviceCopies& copies, SaveTask& task) {
  if (roles == StateRoles::kNone) return absl::OkStatus();
  // Keeps the memory until everything is written, even if the strategy is destroyed.
  struct Owner {
    std::shared_ptr<const void> previous_owner;
    std::vector<at::Tensor> tensors;
  };
  auto owner = std::make_shared<Owner>();
  owner->previous_owner = std::move(task.owner);
  // Values on a GPU, and their ranges, whose bytes are set after the copies to host memory are made.
  std::vector<at::Tensor> on_device;
  std::vector<std::pair<std::vector<SaveRange>*, size_t>> without_bytes;
  SaveTask::File shard{.name = ShardName(task.rank)};
  auto add_to = [&](std::vector<SaveRange>& ranges) {
    return [&, into = &ranges](const StateEntry& entry, int64_t first, const at::Tensor& values) {
      if (roles == StateRoles::kOptimizer && entry.role == kParameterRole) return absl::OkStatus();
      // Training does not change the copies that are made of values on a GPU.
      const bool is_stable = !values.is_cpu();
      if (is_stable) without_bytes.emplace_back(into, into->size());
      into->push_back({.entry = {.tensor = HeaderOf(entry),
                                 .box = entry.box,
                                 .first = static_cast<uint64_t>(first),
                                 .count = static_cast<uint64_t>(values.numel())},
                       .bytes = is_stable ? nullptr : static_cast<const char*>(values.const_data_ptr()),
                       .is_stable = is_stable});
      (is_stable ? on_device : owner->tensors).push_back(values);
      return absl::OkStatus();
    };
  };
  RETURN_IF_ERROR(state.VisitOwn(add_to(shard.ranges)));
  RETURN_IF_ERROR(state.VisitWitnessed(add_to(task.witnessed)));
  const std::vector<at::Tensor> copied = copies.Copy(on_device);
  for (size_t i = 0; i < without_bytes.size(); ++i) {
    (*without_bytes[i].first)[without_bytes[i].second].bytes = static_cast<const char*>(copied[i].const_data_ptr());
    owner->tensors.push_back(copied[i]);
  }
  if (!shard.ranges.empty()) task.files.push_back(std::move(shard));
  task.owner = std::move(owner);
  return absl::OkStatus();
}

absl::Status LoadTensors(const Checkpoint& checkpoint, ParallelState& state) {
  return state.Load([&](const StateEntry& entry, int64_t first, int64_t count, const at::Tensor& out) {
    absl::Span<char> bytes(static_cast<char*>(out.mutable_data_ptr()), out.nbytes());
    absl::Status read = checkpoint.ReadBoxRange(entry.role, entry.name, DtypeOf(out.scalar_type()), entry.shape,
                                                entry.box, first, count, bytes);
    if (entry.role == kParameterRole || !absl::IsNotFound(read)) return read;
    return absl::FailedPreconditionError(
        absl::StrCat("train.freeze: ", entry.name, " was frozen when ", checkpoint.path(),
                     " was written, so there is no optimizer state to resume from; freeze this parameter as before, or "
                     "begin a new job from the weights of the checkpoint by train.model.init_from"));
  });
}

void RestoreCounters(const Manifest& manifest, bool restores_loss_scale, ParallelState& state) {
  state.set_num_updates(manifest.optimizer_updates);
  if (const Manifest::LossScale& scale = manifest.loss_scale; restores_loss_scale && scale.scale > 0) {
    state.set_loss_scale(
        {.scale = scale.scale, .good_steps = scale.good_steps, .hysteresis_left = scale.hysteresis_left});
  }
}

absl::Status LoadState(const Checkpoint& checkpoint, ParallelState& state) {
  RETURN_IF_ERROR(LoadTensors(checkpoint, state));
  RestoreCounters(checkpoint.manifest(), /*restores_loss_scale=*/true, state);
  return absl::OkStatus();
}

namespace {

// Checks that `values`, of which only names, types and shapes are read, are those of the model, except that all
// adapters may be missing.
absl::Status CheckInitialValues(const std::string& path, std::vector<NamedTensor> values, const Model& model) {
  const auto is_adapter = [](const NamedTensor& value) { return IsAdapterName(value.name); };
  const bool has_adapters = std::any_of(values.begin(), values.end(), is_adapter);
  std::vector<NamedTensor> missing;  // adapters of the whole model; only names and shapes
  for (const ParameterDescription& parameter : model.description().parameters) {
    if (!IsAdapterName(parameter.name)) continue;
    missing.push_back({parameter.name, NewUnbacked(parameter.shape, at::kFloat)});
  }
  const bool needs_adapters = !missing.empty();
  if (has_adapters && !needs_adapters) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.model.init_from: ", path,
                     " has adapters, and the job has none: merge them into the model by `trainctl checkpoint export`, "
                     "and name the exported folder; or give the job the same train.lora"));
  }
  if (!has_adapters) {
    std::move(missing.begin(), missing.end(), std::back_inserter(values));
  }
  RETURN_IF_ERROR(CheckParameters(values, model)) << "train.model.init_from: " << path;
  return absl::OkStatus();
}

// Initializes from a checkpoint, whose parameters may be in many files.
absl::Status InitializeFromCheckpoint(const std::string& path, const InitialValues& adapters, Model& model) {
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> opened, Checkpoint::Open(path), << "train.model.init_from");
  const std::shared_ptr<Checkpoint> checkpoint = std::move(opened);
  std::vector<NamedTensor> values;  // only names, types and shapes
  absl::flat_hash_map<std::string, const ManifestTensor*> tensors;
  for (const ManifestTensor& tensor : checkpoint->manifest().tensors) {
    if (tensor.role != kParameterRole) continue;
    const TypeName* type = FindType(tensor.dtype);
    if (type == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("train.model.init_from: ", path, ", tensor '", tensor.name,
                                                     "': weights cannot be ", tensor.dtype));
    }
    values.push_back({tensor.name, NewUnbacked(tensor.shape, type->type)});
    tensors.emplace(tensor.name, &tensor);
  }
  RETURN_IF_ERROR(CheckInitialValues(path, values, model));
  model.set_initial_values([checkpoint, tensors, adapters, &model](int parameter, const at::Tensor& out) {
    if (!tensors.contains(model.description().parameters[static_cast<size_t>(parameter)].name))
      return adapters(parameter, out);
    const ManifestTensor& tensor = *tensors.at(model.description().parameters[static_cast<size_t>(parameter)].name);
    at::Tensor value = at::empty(out.sizes(), at::TensorOptions().dtype(FindType(tensor.dtype)->type));
    absl::Span<char> bytes(static_cast<char*>(value.mutable_data_ptr()), value.nbytes());
    absl::Status read = checkpoint->ReadTensor(kParameterRole, tensor.name, tensor.dtype, tensor.shape, bytes);
    // The file was verified before; this fails only if the file has changed since.
    TORCH_CHECK(read.ok(), read.message());
    out.copy_(value);
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status InitializeFrom(const std::string& path, const InitialValues& adapters, Model& model) {
  if (FileExists(JoinPath(path, kManifestName))) return InitializeFromCheckpoint(path, adapters, model);
  ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> opened, SafetensorsFile::Open(path), << "train.model.init_from");
  const std::shared_ptr<SafetensorsFile> file = std::move(opened);
  std::vector<NamedTensor> values;  // only names, types and shapes
  for (const TensorInfo& info : file->tensors()) {
    if (absl::StartsWith(info.name, "optimizer.")) continue;
    const TypeName* type = FindType(info.dtype);
    if (type == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("train.model.init_from: ", path, ", tensor '", info.name, "': weights cannot be ", info.dtype));
    }
    values.push_back({info.name, NewUnbacked(info.shape, type->type)});
  }
  RETURN_IF_ERROR(CheckInitialValues(path, values, model));
  absl::flat_hash_map<std::string, at::ScalarType> types;
  for (const NamedTensor& value : values) types.emplace(value.name, value.tensor.scalar_type());
  model.set_initial_values([file, types, adapters, &model](int parameter, const at::Tensor& out) {
    const std::string& name = model.description().parameters[static_cast<size_t>(parameter)].name;
    if (!types.contains(name)) return adapters(parameter, out);
    // Makes a copy, because a tensor may begin at any byte of the file.
    at::Tensor value = at::empty(out.sizes(), at::TensorOptions().dtype(types.at(name)));
    std::memcpy(value.mutable_data_ptr(), file->Bytes(*file->Find(name)).data(), value.nbytes());
    out.copy_(value);
  });
  return absl::OkStatus();
}

}  // namespace trainyard
