#include "worker/trainer/state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/checkpoint/safetensors.h"

namespace trainyard {
namespace {

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr TypeName kTypes[] = {{at::kFloat, "F32"}, {at::kDouble, "F64"}, {at::kHalf, "F16"}, {at::kBFloat16, "BF16"}};

const char* DtypeOf(at::ScalarType type) {
  for (const TypeName& known : kTypes) {
    if (known.type == type) return known.name;
  }
  return "";
}

absl::Status ReadInto(const Checkpoint& checkpoint, absl::string_view role, const std::vector<NamedTensor>& named) {
  at::NoGradGuard no_grad;
  for (const NamedTensor& entry : named) {
    at::Tensor target = entry.tensor.detach();
    at::Tensor dense = target.is_contiguous() ? target : at::empty(target.sizes(), target.options());
    absl::Span<char> bytes(static_cast<char*>(dense.mutable_data_ptr()), dense.nbytes());
    RETURN_IF_ERROR(checkpoint.ReadTensor(role, entry.name, DtypeOf(dense.scalar_type()), dense.sizes().vec(), bytes));
    if (!dense.is_same(target)) target.copy_(dense);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SaveState(DataParallel& strategy, StateWriter write, absl::StatusOr<SavedCheckpoint>& saved) {
  std::vector<TensorHeader> headers;
  for (const StateEntry& entry : strategy.StateEntries()) {
    headers.push_back({.name = entry.name, .role = entry.role, .dtype = DtypeOf(entry.type), .shape = entry.shape});
  }
  bool gathered = false;
  absl::Status gathering;
  saved = write(headers, [&](TensorSink sink) -> absl::Status {
    gathered = true;
    absl::Status taken;
    gathering = strategy.VisitState([&](absl::string_view, const NamedTensor& entry) {
      if (taken.ok()) taken = sink({static_cast<const char*>(entry.tensor.const_data_ptr()), entry.tensor.nbytes()});
      return absl::OkStatus();
    });
    RETURN_IF_ERROR(gathering);
    return taken;
  });
  return gathered ? gathering : JoinSave(strategy);
}

absl::Status JoinSave(DataParallel& strategy) {
  return strategy.VisitState([](absl::string_view, const NamedTensor&) { return absl::OkStatus(); });
}

absl::Status LoadState(const Checkpoint& checkpoint, DataParallel& strategy) {
  absl::flat_hash_map<std::string, std::vector<int64_t>> shapes;
  for (const StateEntry& entry : strategy.StateEntries()) shapes[entry.name] = entry.shape;
  RETURN_IF_ERROR(strategy.LoadState([&](absl::string_view role, absl::string_view name, int64_t first, int64_t count,
                                         const at::Tensor& out) {
    absl::Span<char> bytes(static_cast<char*>(out.mutable_data_ptr()), out.nbytes());
    absl::Status read = checkpoint.ReadRange(role, name, DtypeOf(out.scalar_type()), shapes[name], first, count, bytes);
    if (role == kParameterRole || !absl::IsNotFound(read)) return read;
    return absl::FailedPreconditionError(
        absl::StrCat("train.freeze: ", name, " was frozen when ", checkpoint.path(),
                     " was written, so it has no optimizer state to go on with; freeze it as before, or begin a "
                     "new job from its weights by train.model.init_from"));
  }));
  strategy.set_num_updates(checkpoint.manifest().optimizer_updates);
  if (const Manifest::LossScale& scale = checkpoint.manifest().loss_scale; scale.scale > 0) {
    strategy.set_loss_scale(
        {.scale = scale.scale, .good_steps = scale.good_steps, .hysteresis_left = scale.hysteresis_left});
  }
  return absl::OkStatus();
}

absl::Status LoadParametersFrom(const Checkpoint& checkpoint, Model& model) {
  return ReadInto(checkpoint, kParameterRole, model.parameters());
}

absl::Status InitializeFrom(const std::string& path, Model& model) {
  ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> opened, SafetensorsFile::Open(path), << "train.model.init_from");
  const std::shared_ptr<SafetensorsFile> file = std::move(opened);
  std::vector<NamedTensor> values;  // without memory
  for (const TensorInfo& info : file->tensors()) {
    if (absl::StartsWith(info.name, "optimizer.")) continue;
    const TypeName* type = nullptr;
    for (const TypeName& known : kTypes) {
      if (info.dtype == known.name) type = &known;
    }
    if (type == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("train.model.init_from: ", path, ", tensor '", info.name, "': weights cannot be ", info.dtype));
    }
    values.push_back({info.name, NewUnbacked(info.shape, type->type)});
  }
  RETURN_IF_ERROR(CheckParameters(values, model)) << "train.model.init_from: " << path;
  absl::flat_hash_map<std::string, at::ScalarType> types;
  for (const NamedTensor& value : values) types.emplace(value.name, value.tensor.scalar_type());
  model.set_initial_values([file, types, &model](int parameter, const at::Tensor& out) {
    const std::string& name = model.parameters()[static_cast<size_t>(parameter)].name;
    // A copy: a tensor may lie at any byte of the file.
    at::Tensor value = at::empty(out.sizes(), at::TensorOptions().dtype(types.at(name)));
    std::memcpy(value.mutable_data_ptr(), file->Bytes(*file->Find(name)).data(), value.nbytes());
    out.copy_(value);
  });
  return absl::OkStatus();
}

}  // namespace trainyard
