#include "checkpoint/foreign_weights.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

// Exact, because every bf16 and fp16 value is a float.
float FromBf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

float FromF16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1F, fraction = bits & 0x3FF;
  float value;
  if (exponent == 0) {  // zero and subnormal values: fraction x 2^-24
    value = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t wide =
      exponent == 31 ? sign | 0x7F800000u | fraction << 13 : sign | (exponent + 112) << 23 | fraction << 13;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

bool IsIgnored(const std::string& name, const HuggingFaceNames& names) {
  return std::any_of(names.ignored.begin(), names.ignored.end(),
                     [&](const std::string& glob) { return fnmatch(glob.c_str(), name.c_str(), 0) == 0; });
}

}  // namespace

absl::Status CheckWeights(const std::vector<WeightInfo>& weights, const ModelDescription& model) {
  const std::string& embedding = model.hugging_face.embedding;
  std::map<std::string, const WeightInfo*> by_name;
  for (const WeightInfo& weight : weights) by_name[weight.name] = &weight;
  auto first = by_name.find(embedding);
  const std::string dtype = first == by_name.end() ? "" : first->second->dtype;
  std::vector<std::string> missing, unexpected, wrong;
  for (const auto& [name, shape, initial] : model.ParametersInExportOrder()) {
    auto it = by_name.find(name);
    if (it == by_name.end()) {
      missing.push_back(name);
      continue;
    }
    const WeightInfo& weight = *it->second;
    if (weight.shape != shape) {
      wrong.push_back(absl::StrCat(name, " is ", ShapeText(weight.shape), ", expected ", ShapeText(shape)));
    } else if (!dtype.empty() && weight.dtype != dtype) {
      wrong.push_back(absl::StrCat(name, " is ", weight.dtype, ", but ", embedding, " is ", dtype));
    }
    by_name.erase(it);
  }
  for (const auto& [name, weight] : by_name) unexpected.push_back(name);
  std::vector<std::string> problems;
  auto report = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) problems.push_back(absl::StrCat(what, ": ", absl::StrJoin(names, ", ")));
  };
  report("missing", missing);
  report("unexpected", unexpected);
  report("wrong", wrong);
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the weights are not those of ", SizesText(model.sizes), "; ", absl::StrJoin(problems, "; ")));
}

absl::StatusOr<std::unique_ptr<ForeignWeights>> ForeignWeights::Open(const std::string& path,
                                                                     const ModelDescription& model) {
  const HuggingFaceNames& names = model.hugging_face;
  std::unique_ptr<ForeignWeights> weights(new ForeignWeights(names.prefix));
  ASSIGN_OR_RETURN(weights->file_, SafetensorsFile::Open(path));
  const SafetensorsFile& file = *weights->file_;
  std::vector<WeightInfo> infos;
  const TensorInfo* head = file.Find(names.head);
  for (const TensorInfo& info : file.tensors()) {
    const std::string name(absl::StripPrefix(info.name, names.prefix));
    if (&info == head || IsIgnored(name, names)) continue;
    infos.push_back({name, info.dtype, info.shape});
  }
  RETURN_IF_ERROR(CheckWeights(infos, model)) << path;
  const TensorInfo& embedding = weights->Find(names.embedding);
  if (head != nullptr && file.Bytes(*head) != file.Bytes(embedding)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", names.head, " differs from ", names.embedding,
                                                   "; only a head that is tied to the token embedding can be trained "
                                                   "here"));
  }
  if (embedding.dtype == "F64") weights->dtype_ = "F64";
  for (const char* supported : {"F64", "F32", "F16", "BF16"}) {
    if (embedding.dtype == supported) return weights;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": weights cannot be ", embedding.dtype, "; supported are F64, F32, F16 and BF16"));
}

const TensorInfo& ForeignWeights::Find(const std::string& name) const {
  const TensorInfo* info = file_->Find(name);
  return info != nullptr ? *info : *file_->Find(absl::StrCat(prefix_, name));
}

std::string ForeignWeights::Read(const std::string& name) const {
  const TensorInfo& info = Find(name);
  const absl::string_view bytes = file_->Bytes(info);
  if (info.dtype == "F32" || info.dtype == "F64") return std::string(bytes);
  std::string wide(bytes.size() * 2, '\0');
  for (size_t i = 0; i < bytes.size() / 2; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * i, sizeof bits);
    const float value = info.dtype == "BF16" ? FromBf16(bits) : FromF16(bits);
    std::memcpy(wide.data() + 4 * i, &value, sizeof value);
  }
  return wide;
}

std::string ForeignWeights::Zeros(const std::string& name) const {
  return std::string(CountElements(Find(name).shape).value_or(0) * DtypeBytes(dtype_), '\0');
}

}  // namespace trainyard
