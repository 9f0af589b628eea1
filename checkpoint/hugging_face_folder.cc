#include "checkpoint/hugging_face_folder.h"

#include "absl/strings/str_cat.h"
#include "checkpoint/catalog.h"
#include "checkpoint/foreign_weights.h"
#include "checkpoint/import_writer.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "models/hugging_face_config.h"
#include "models/model_description.h"

namespace trainyard {
namespace {

constexpr uint64_t kConfigBytesMax = 1 << 16;  // the limit of train.model.config

}  // namespace

absl::StatusOr<std::string> ReadConfigText(const std::string& folder) {
  return ReadRegularFile(JoinPath(folder, kConfigName), kConfigBytesMax);
}

absl::StatusOr<ModelSizes> ReadModelConfig(const std::string& folder) {
  ASSIGN_OR_RETURN(std::string text, ReadConfigText(folder));
  return ParseHuggingFaceConfig(text, JoinPath(folder, kConfigName));
}

absl::StatusOr<SavedCheckpoint> ImportModel(const std::string& folder, const ModelSizes& sizes,
                                            const std::string& run_folder, Manifest manifest, FileSystem& file_system) {
  ASSIGN_OR_RETURN(std::vector<StepFolder> existing, ListCheckpoints(run_folder));
  if (!existing.empty())
    return absl::AlreadyExistsError(absl::StrCat(existing[0].path, " already exists; name a new folder"));
  const ModelDescription model = DescribeModel(sizes);
  ASSIGN_OR_RETURN(std::unique_ptr<ForeignWeights> weights, ForeignWeights::Open(folder, model));
  RETURN_IF_ERROR(MakeFolders(run_folder));
  std::vector<TensorHeader> headers;
  for (const char* role : {kParameterRole, kFirstMomentRole, kSecondMomentRole}) {
    for (const ParameterDescription& parameter : model.ParametersInExportOrder()) {
      headers.push_back({.name = parameter.name, .role = role, .dtype = weights->dtype(), .shape = parameter.shape});
    }
  }
  auto stream = [&](TensorSink sink) -> absl::Status {
    for (const TensorHeader& header : headers) {
      std::string bytes = header.role == kParameterRole ? weights->Read(header.name) : weights->Zeros(header.name);
      RETURN_IF_ERROR(sink(bytes));
    }
    return absl::OkStatus();
  };
  manifest.step = 0;
  return WriteImportedCheckpoint(run_folder, std::move(manifest), headers, stream, file_system);
}

}  // namespace trainyard
