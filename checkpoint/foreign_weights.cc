#include "checkpoint/foreign_weights.h"

#include <fnmatch.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "checkpoint/dtype_convert.h"
#include "common/plural.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr size_t kNamesShown = 100;

bool IsIgnored(const std::string& name, const HuggingFaceNames& names) {
  return std::any_of(names.ignored.begin(), names.ignored.end(),
                     [&](const std::string& glob) { return fnmatch(glob.c_str(), name.c_str(), 0) == 0; });
}

bool IsParameter(const ModelDescription& model, const std::string& name) {
  return std::any_of(model.parameters.begin(), model.parameters.end(),
                     [&](const ParameterDescription& parameter) { return parameter.name == name; });
}

}  // namespace

absl::Status CheckWeights(const std::vector<WeightInfo>& weights, const ModelDescription& model) {
  std::map<std::string, const WeightInfo*> by_name;
  for (const WeightInfo& weight : weights) by_name[weight.name] = &weight;
  std::vector<std::string> missing, unexpected, wrong_shapes, wrong_types;
  for (const ParameterDescription& parameter : model.ParametersInExportOrder()) {
    const std::string& name = parameter.name;
    const std::vector<int64_t>& shape = parameter.shape;
    auto it = by_name.find(name);
    if (it == by_name.end()) {
      missing.push_back(name);
      continue;
    }
    const WeightInfo& weight = *it->second;
    if (!IsFloating(weight.dtype)) {
      wrong_types.push_back(absl::StrCat(name, " is ", weight.dtype));
    } else if (weight.shape != shape) {
      wrong_shapes.push_back(absl::StrCat(name, " is ", ShapeText(weight.shape), ", expected ", ShapeText(shape)));
    }
    by_name.erase(it);
  }
  for (const auto& [name, weight] : by_name) unexpected.push_back(name);
  std::vector<std::string> problems;
  auto report = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) problems.push_back(absl::StrCat(what, ": ", JoinFirst(names, kNamesShown)));
  };
  report("missing", missing);
  report("unexpected", unexpected);
  report("wrong shape", wrong_shapes);
  report("not of type F64, F32, F16 or BF16 (quantised weights are not supported)", wrong_types);
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the weights are not those of ", SizesText(model.sizes), "; ", absl::StrJoin(problems, "; ")));
}

absl::StatusOr<std::unique_ptr<ForeignWeights>> ForeignWeights::Open(const std::string& path,
                                                                     const ModelDescription& model) {
  std::unique_ptr<ForeignWeights> weights(new ForeignWeights);
  ASSIGN_OR_RETURN(weights->files_, WeightFiles::Open(path));
  RETURN_IF_ERROR(weights->MatchNames(model)) << path;
  std::vector<WeightInfo> infos;
  for (const auto& [name, weight] : weights->by_name_) infos.push_back({name, weight->info.dtype, weight->info.shape});
  RETURN_IF_ERROR(CheckWeights(infos, model)) << path;
  if (weights->by_name_.at(model.hugging_face.embedding)->info.dtype == "F64") weights->dtype_ = "F64";
  return weights;
}

absl::Status ForeignWeights::MatchNames(const ModelDescription& model) {
  const HuggingFaceNames& names = model.hugging_face;
  const Weight* tied_head = nullptr;
  std::vector<std::string> twice;
  for (const auto& [full_name, weight] : files_->weights()) {
    const std::string name(absl::StripPrefix(full_name, names.prefix));
    if (IsIgnored(name, names)) continue;
    if (full_name == names.head && !IsParameter(model, names.head)) {
      tied_head = &weight;
    } else if (!by_name_.insert({name, &weight}).second) {
      twice.push_back(name);
    }
  }
  if (!twice.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("these tensors are present both with and without the prefix '",
                                                   names.prefix, "', so it is unknown which are meant; keep only one ",
                                                   "of each pair: ", JoinFirst(twice, 20)));
  }
  return tied_head == nullptr ? absl::OkStatus() : MatchHead(model, *tied_head);
}

// transformers saves a tied matrix once, under the name of the head or of the embedding. Other programs save it under
// both names; the values must then be equal.
absl::Status ForeignWeights::MatchHead(const ModelDescription& model, const Weight& head) {
  const HuggingFaceNames& names = model.hugging_face;
  auto [it, has_no_embedding] = by_name_.insert({names.embedding, &head});
  if (has_no_embedding) return absl::OkStatus();
  const Weight& embedding = *it->second;
  if (head.info.dtype == embedding.info.dtype && head.file->Bytes(head.info) == embedding.file->Bytes(embedding.info)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      names.head, " differs from ", names.embedding,
      IsLlamaGraph(model.sizes.family) ? "; to train both, set tie_word_embeddings to false in config.json"
                                       : "; only a head that is tied to the token embedding can be trained here"));
}

absl::Status ForeignWeights::ReadRange(const std::string& name, uint64_t first, uint64_t count, absl::string_view dtype,
                                       absl::Span<char> out) const {
  return WeightFiles::ReadRange(*by_name_.at(name), first, count, dtype, out);
}

absl::Status ForeignWeights::ReadBoxRange(const std::string& name, const Box& box, uint64_t first, uint64_t count,
                                          absl::string_view dtype, absl::Span<char> out) const {
  const Weight& weight = *by_name_.at(name);
  const uint64_t width = DtypeBytes(dtype);
  const uint64_t elements = IsWithin(box, weight.info.shape) ? static_cast<uint64_t>(CountIn(box)) : 0;
  if (first > elements || count > elements - first || out.size() != count * width) {
    return absl::OutOfRangeError(absl::StrCat(name, " is ", ShapeText(weight.info.shape), ", so elements ", first,
                                              " + ", count, " of the box at ", ShapeText(box.start), " of size ",
                                              ShapeText(box.size), " cannot be read into ", out.size(), " bytes"));
  }
  absl::Status status;
  size_t done = 0;
  ForEachRun(weight.info.shape, box, static_cast<int64_t>(first), static_cast<int64_t>(count),
             [&](int64_t at, int64_t length) {
               const size_t bytes = static_cast<size_t>(length) * width;
               status = WeightFiles::ReadRange(weight, static_cast<uint64_t>(at), static_cast<uint64_t>(length), dtype,
                                               out.subspan(done, bytes));
               done += bytes;
               return status.ok();
             });
  return status;
}

std::string ForeignWeights::Read(const std::string& name) const {
  const Weight& weight = *by_name_.at(name);
  return ConvertValues(weight.file->Bytes(weight.info), weight.info.dtype, dtype_);
}

std::string ForeignWeights::Zeros(const std::string& name) const {
  return std::string(CountElements(by_name_.at(name)->info.shape).value_or(0) * DtypeBytes(dtype_), '\0');
}

}  // namespace trainyard
