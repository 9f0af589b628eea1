#include "worker/model/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <fnmatch.h>

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "models/lora_targets.h"
#include "worker/model/key_value_cache.h"

namespace trainyard {
namespace {

constexpr size_t kProblemsShown = 3;

std::string ShapeText(at::IntArrayRef sizes) { return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]"); }

// Adds "what a, b, c and 4 more" to `problems`, unless `found` is empty.
void Report(absl::string_view what, const std::vector<std::string>& found, std::vector<std::string>& problems) {
  if (found.empty()) return;
  problems.push_back(absl::StrCat(what, " ", JoinFirst(found, kProblemsShown)));
}

}  // namespace

void Model::AddParameters(const ModelDescription& description, at::ScalarType type) {
  // Adapters are trained instead of the other parameters.
  const bool has_adapters = description.sizes.lora.rank > 0;
  for (const ParameterDescription& parameter : description.parameters) {
    parameters_.push_back({.name = parameter.name, .tensor = NewUnbacked(parameter.shape, type)});
    parameters_.back().tensor.requires_grad_(!has_adapters || IsAdapterName(parameter.name));
  }
  for (const UnitDescription& unit : description.units) {
    units_.push_back(
        {.name = unit.name, .first_parameter = unit.first_parameter, .num_parameters = unit.num_parameters});
  }
}

at::Tensor Model::Decode(const std::vector<SequenceTokens>&, KeyValueCache&) {
  TORCH_CHECK(false, "this model cannot generate text");
}
CacheShape Model::cache_shape() const { return {}; }

std::vector<int> Model::ReadyOrder() const {
  std::vector<int> order;
  for (int i = static_cast<int>(parameters_.size()) - 1; i >= 0; --i) order.push_back(i);
  return order;
}

int64_t Model::num_elements() const {
  int64_t sum = 0;
  for (const NamedTensor& parameter : parameters_) sum += parameter.tensor.numel();
  return sum;
}

void Model::WriteInitialValues(int parameter, const at::Tensor& out) const {
  c10::NoGradGuard no_grad;
  const size_t i = static_cast<size_t>(parameter);
  initial_ == nullptr ? static_cast<void>(out.copy_(parameters_[i].tensor)) : initial_(parameter, out);
}

void Model::Materialize() {
  if (initial_ == nullptr) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor tensor = parameters_[i].tensor;
    at::Tensor memory = at::empty(tensor.sizes(), tensor.scalar_type());
    WriteInitialValues(static_cast<int>(i), memory);
    tensor.set_data(memory);
  }
  initial_ = nullptr;
}

void Model::PlaceOn(at::Device device) {
  for (const NamedTensor& parameter : parameters_) {
    at::Tensor tensor = parameter.tensor;
    tensor.set_data(NewUnbacked(tensor.sizes(), tensor.scalar_type(), device));
  }
}

at::Tensor PositionsInDocuments(const at::Tensor& starts) {
  return starts.defined() ? at::arange(starts.size(1), starts.options()) - starts : at::Tensor();
}

at::Tensor NewUnbacked(at::IntArrayRef sizes, at::ScalarType type, at::Device device) {
  const auto like = at::empty({0}, at::TensorOptions().dtype(type).device(device));
  const int64_t bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(like.element_size());
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes), at::DataPtr(nullptr, like.device()),
                       /*allocator=*/nullptr, /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), like.key_set(), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

absl::Status Freeze(const std::vector<std::string>& globs, Model& model) {
  std::vector<std::string> unmatched;
  for (const std::string& glob : globs) {
    bool matches = false;
    for (const NamedTensor& parameter : model.parameters()) {
      if (fnmatch(glob.c_str(), parameter.name.c_str(), 0) != 0) continue;
      matches = true;
      at::Tensor(parameter.tensor).set_requires_grad(false);
    }
    if (!matches) unmatched.push_back(absl::StrCat("'", glob, "'"));
  }
  std::vector<std::string> problems;
  Report("no parameter matches", unmatched, problems);
  const bool all = std::none_of(model.parameters().begin(), model.parameters().end(),
                                [](const NamedTensor& parameter) { return parameter.tensor.requires_grad(); });
  if (all) problems.push_back(absl::StrCat("all ", model.parameters().size(), " parameters match"));
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(absl::StrJoin(problems, "; "), "; names look like ", model.parameters().front().name, " and ",
                   model.parameters().back().name, ", and at least one parameter must be left to train"));
}

absl::Status CheckParameters(const std::vector<NamedTensor>& values, const Model& model) {
  absl::flat_hash_map<std::string, at::Tensor> expected;
  for (const NamedTensor& parameter : model.parameters()) expected.emplace(parameter.name, parameter.tensor);

  std::vector<std::string> unknown, duplicates, shapes, missing;
  absl::flat_hash_set<std::string> seen;
  for (const NamedTensor& value : values) {
    auto it = expected.find(value.name);
    if (it == expected.end()) {
      unknown.push_back(value.name);
    } else if (!seen.insert(value.name).second) {
      duplicates.push_back(value.name);
    } else if (value.tensor.sizes() != it->second.sizes()) {
      shapes.push_back(absl::StrCat(value.name, " is ", ShapeText(value.tensor.sizes()), ", but the model has ",
                                    ShapeText(it->second.sizes())));
    }
  }
  for (const NamedTensor& parameter : model.parameters()) {
    if (!seen.contains(parameter.name)) missing.push_back(parameter.name);
  }
  std::vector<std::string> problems;
  Report("missing:", missing, problems);
  Report("not a parameter of this model:", unknown, problems);
  Report("given twice:", duplicates, problems);
  Report("wrong shape:", shapes, problems);
  if (!problems.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the weights do not fit the model; ", absl::StrJoin(problems, "; ")));
  }

  return absl::OkStatus();
}

absl::Status LoadParameters(const std::vector<NamedTensor>& values, Model& model) {
  RETURN_IF_ERROR(CheckParameters(values, model));
  absl::flat_hash_map<std::string, at::Tensor> expected;
  for (const NamedTensor& parameter : model.parameters()) expected.emplace(parameter.name, parameter.tensor);
  c10::NoGradGuard no_grad;
  for (const NamedTensor& value : values) expected.at(value.name).copy_(value.tensor);
  return absl::OkStatus();
}

}  // namespace trainyard
