#include "worker/trainer/state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/checkpoint/safetensors.h"

namespace trainyard {
namespace {

constexpr char kParameter[] = "parameter";
constexpr char kFirstMoment[] = "exp_avg";
constexpr char kSecondMoment[] = "exp_avg_sq";

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

void AddViews(absl::string_view role, const std::vector<NamedTensor>& named, StateView& view) {
  for (const NamedTensor& entry : named) {
    at::Tensor dense = entry.tensor.detach().contiguous();
    view.owners.push_back(dense);
    view.tensors.push_back({.name = entry.name,
                            .role = std::string(role),
                            .dtype = DtypeOf(dense.scalar_type()),
                            .shape = dense.sizes().vec(),
                            .bytes = {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()}});
  }
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

StateView ViewState(Model& model, DataParallel& strategy) {
  StateView view;
  AddViews(kParameter, model.parameters(), view);
  AddViews(kFirstMoment, strategy.FirstMoments(), view);
  AddViews(kSecondMoment, strategy.SecondMoments(), view);
  return view;
}

absl::Status LoadState(const Checkpoint& checkpoint, Model& model, DataParallel& strategy) {
  RETURN_IF_ERROR(ReadInto(checkpoint, kParameter, model.parameters()));
  RETURN_IF_ERROR(ReadInto(checkpoint, kFirstMoment, strategy.FirstMoments()));
  RETURN_IF_ERROR(ReadInto(checkpoint, kSecondMoment, strategy.SecondMoments()));
  strategy.set_num_updates(checkpoint.manifest().optimizer_updates);
  return absl::OkStatus();
}

absl::Status LoadParametersFrom(const Checkpoint& checkpoint, Model& model) {
  return ReadInto(checkpoint, kParameter, model.parameters());
}

absl::Status InitializeFrom(const std::string& path, Model& model) {
  ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path), << "train.model.init_from");
  std::vector<NamedTensor> values;
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
    // A copy: a tensor may lie at any byte of the file.
    at::Tensor value = at::empty(info.shape, at::TensorOptions().dtype(type->type));
    std::memcpy(value.mutable_data_ptr(), file->Bytes(info).data(), value.nbytes());
    values.push_back({info.name, std::move(value)});
  }
  RETURN_IF_ERROR(LoadParameters(values, model)) << "train.model.init_from: " << path;
  return absl::OkStatus();
}

}  // namespace trainyard
