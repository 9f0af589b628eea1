#include "tests/parity/hugging_face_model.h"

#include <ATen/ops/from_blob.h>

#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/hugging_face_folder.h"
#include "common/status_macros.h"
#include "models/model_description.h"
#include "worker/model/model_factory.h"

namespace trainyard {

absl::StatusOr<at::Tensor> ReadTensor(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* info = file.Find(name);
  if (info == nullptr) return absl::InvalidArgumentError(absl::StrCat(file.path(), " has no tensor ", name));
  const std::map<std::string, at::ScalarType> types = {{"F32", at::kFloat}, {"F64", at::kDouble}, {"I64", at::kLong}};
  const auto type = types.find(info->dtype);
  if (type == types.end()) return absl::InvalidArgumentError(absl::StrCat(name, " has type ", info->dtype));
  return at::from_blob(const_cast<char*>(file.Bytes(*info).data()), info->shape, type->second).clone();
}

absl::StatusOr<std::unique_ptr<Model>> OpenHuggingFaceModel(const std::string& folder, at::ScalarType type) {
  ASSIGN_OR_RETURN(const ModelSizes sizes, ReadModelConfig(folder));
  ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(folder + "/model.safetensors"));
  const ModelDescription description = DescribeModel(sizes);
  std::vector<NamedTensor> weights;
  for (const ParameterDescription& parameter : description.parameters) {
    const std::string full_name = HuggingFaceName(description, parameter.name);
    ASSIGN_OR_RETURN(at::Tensor tensor,
                     ReadTensor(*file, file->Find(full_name) == nullptr ? parameter.name : full_name));
    weights.push_back({.name = parameter.name, .tensor = tensor});
  }
  ASSIGN_OR_RETURN(auto model, NewModel(sizes, /*seed=*/0, type));
  RETURN_IF_ERROR(LoadParameters(weights, *model));
  return model;
}

absl::Status WriteTensors(const std::map<std::string, at::Tensor>& tensors, const std::string& path) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back({.name = name, .dtype = "F64", .shape = tensor.sizes().vec()});
  }
  std::ofstream out(path, std::ios::binary);
  out << SafetensorsHeader(infos, {});
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor wide = tensor.detach().to(at::kDouble).contiguous();
    out.write(static_cast<const char*>(wide.const_data_ptr()), static_cast<std::streamsize>(wide.nbytes()));
  }
  return out.flush() ? absl::OkStatus() : absl::InternalError(absl::StrCat("cannot write ", path));
}

}  // namespace trainyard
