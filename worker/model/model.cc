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

void Model::AddParameters(const ModelDescription& description, const ModelPart& part, at::ScalarType type) {
  description_ = description;
  part_ = part;
  PartDescription held = DescribePart(description, part);
  // Adapters are trained instead of the other parameters.
  const bool has_adapters = description.sizes.lora.rank > 0;
  for (const PartParameter& parameter : held.parameters) {
    parameters_.push_back({.name = parameter.name, .tensor = NewUnbacked(parameter.shape, type)});
    parameters_.back().tensor.requires_grad_(!has_adapters || IsAdapterName(parameter.name));
  }
  for (PartUnit& unit : held.units) {
    units_.push_back({.name = std::move(unit.name),
                      .first_parameter = unit.first_parameter,
                      .num_parameters = unit.num_parameters,
                      .number = unit.number});
  }
  boxes_ = std::move(held.parameters);
}

Model::UnitRange Model::UnitsOfChunk(int chunk) const {
  UnitRange range{.first = 1, .last = 1};
  for (int c = 0; c <= chunk; ++c) {
    range.first = range.last;
    range.last += static_cast<int>(part_.chunks[static_cast<size_t>(c)].num_blocks);
  }
  return range;
}

std::vector<int> Model::IndexesInPart() const {
  std::vector<int> indexes(description_.parameters.size(), -1);
  for (size_t i = boxes_.size(); i-- > 0;) indexes[static_cast<size_t>(boxes_[i].number)] = static_cast<int>(i);
  return indexes;
}

bool Model::IsWhole(int index) const {
  if (boxes_.empty()) return true;
  const PartParameter& box = boxes_[static_cast<size_t>(index)];
  return box.shape == description_.parameters[static_cast<size_t>(box.number)].shape;
}

at::Tensor Model::RunChunk(int, const at::Tensor&, const MicroBatch& batch, UnitHooks& hooks) {
  return LossSum(batch.inputs, batch.targets, hooks, batch.dropout, batch.starts);
}

std::vector<int64_t> Model::BoundaryShape(const MicroBatch& batch) const {
  const int64_t sequences = batch.inputs.size(0), tokens = batch.inputs.size(1), width = description_.sizes.width;
  if (!part_.divides_sequence) return {sequences, tokens, width};
  return {ShareOfSequence(sequences * tokens, part_.tensor_size), width};
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
  if (initial_ == nullptr) {
    out.copy_(parameters_[i].tensor);
    return;
  }
  const int number = boxes_.empty() ? parameter : boxes_[i].number;
  if (IsWhole(parameter)) return initial_(number, out);
  // The values of a part are those of the whole parameter, whatever the layout.
  const at::Tensor whole = at::empty(description_.parameters[static_cast<size_t>(number)].shape, out.options());
  initial_(number, whole);
  out.copy_(BoxOf(boxes_[i], whole));
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

at::Tensor BoxOf(const PartParameter& box, at::Tensor whole) {
  for (size_t d = 0; d < box.shape.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), box.start[d], box.shape[d]);
  }
  return whole;
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
  // The names of the whole model: every rank must decide alike, whatever its part.
  std::vector<std::string> names;
  for (const ParameterDescription& parameter : model.description().parameters) names.push_back(parameter.name);
  for (size_t i = 0; names.empty() && i < model.parameters().size(); ++i) names.push_back(model.parameters()[i].name);
  const bool has_adapters = model.description().sizes.lora.rank > 0;
  std::vector<bool> frozen;
  for (const std::string& name : names) frozen.push_back(has_adapters && !IsAdapterName(name));
  std::vector<std::string> unmatched;
  for (const std::string& glob : globs) {
    const auto matches = [&glob](const std::string& name) { return fnmatch(glob.c_str(), name.c_str(), 0) == 0; };
    if (std::none_of(names.begin(), names.end(), matches)) unmatched.push_back(absl::StrCat("'", glob, "'"));
    for (size_t i = 0; i < names.size(); ++i) frozen[i] = frozen[i] || matches(names[i]);
    for (const NamedTensor& parameter : model.parameters()) {
      if (matches(parameter.name)) at::Tensor(parameter.tensor).set_requires_grad(false);
    }
  }
  std::vector<std::string> problems;
  Report("no parameter matches", unmatched, problems);
  const bool all = std::find(frozen.begin(), frozen.end(), false) == frozen.end();
  if (all) problems.push_back(absl::StrCat("all ", names.size(), " parameters match"));
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(absl::StrJoin(problems, "; "), "; names look like ", names.front(),
                                                 " and ", names.back(),
                                                 ", and at least one parameter must be left to train"));
}

absl::Status CheckParameters(const std::vector<NamedTensor>& values, const Model& model) {
  std::vector<std::string> names;
  absl::flat_hash_map<std::string, std::vector<int64_t>> expected;  // shapes of the whole model
  const auto expect = [&](const std::string& name, std::vector<int64_t> shape) {
    names.push_back(name);
    expected.emplace(name, std::move(shape));
  };
  for (const ParameterDescription& each : model.description().parameters) expect(each.name, each.shape);
  for (size_t i = 0; model.description().parameters.empty() && i < model.parameters().size(); ++i) {
    expect(model.parameters()[i].name, model.parameters()[i].tensor.sizes().vec());
  }

  std::vector<std::string> unknown, duplicates, shapes, missing;
  absl::flat_hash_set<std::string> seen;
  for (const NamedTensor& value : values) {
    auto it = expected.find(value.name);
    if (it == expected.end()) {
      unknown.push_back(value.name);
    } else if (!seen.insert(value.name).second) {
      duplicates.push_back(value.name);
    } else if (value.tensor.sizes() != it->second) {
      shapes.push_back(absl::StrCat(value.name, " is ", ShapeText(value.tensor.sizes()), ", but the model has ",
                                    ShapeText(it->second)));
    }
  }
  for (const std::string& name : names) {
    if (!seen.contains(name)) missing.push_back(name);
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
  absl::flat_hash_map<std::string, at::Tensor> given;
  for (const NamedTensor& value : values) given.emplace(value.name, value.tensor);
  c10::NoGradGuard no_grad;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const at::Tensor& whole = given.at(model.parameters()[i].name);
    at::Tensor(model.parameters()[i].tensor).copy_(model.boxes().empty() ? whole : BoxOf(model.boxes()[i], whole));
  }
  return absl::OkStatus();
}

}  // namespace trainyard
