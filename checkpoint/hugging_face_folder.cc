#include "checkpoint/hugging_face_folder.h"

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/catalog.h"
#include "checkpoint/foreign_weights.h"
#include "checkpoint/import_writer.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "models/hugging_face_config.h"
#include "models/model_description.h"
#include "tokenizers/byte_tokenizer.h"
#include "tokenizers/tokenizer_json.h"

namespace trainyard {
namespace {

constexpr char kConfigName[] = "config.json";
constexpr char kWeightsName[] = "model.safetensors";
constexpr uint64_t kConfigBytesMax = 1 << 20;

constexpr char kReadme[] =
    "A GPT-2 model in the form of the Python library transformers.\n\n"
    "Its vocabulary is the 256 values of a byte: token 65 is the byte 65, \"A\". There are no special tokens: neither\n"
    "beginning nor end of a text nor padding. tokenizer.json says just that, so text of any kind is encoded and\n"
    "decoded without loss; a token is one byte of UTF-8, not one character.\n";

absl::Status WriteText(const std::string& path, absl::string_view text, FileSystem& file_system) {
  ASSIGN_OR_RETURN(auto file, file_system.Create(path));
  RETURN_IF_ERROR(file->Append(text));
  return file->Sync();
}

absl::Status WriteWeights(const Checkpoint& checkpoint, const ModelDescription& model, const std::string& dtype,
                          const std::string& path, FileSystem& file_system) {
  const std::string& prefix = model.hugging_face.prefix;
  std::vector<TensorInfo> infos;
  for (const ParameterDescription& parameter : model.ParametersInExportOrder()) {
    infos.push_back({.name = absl::StrCat(prefix, parameter.name), .dtype = dtype, .shape = parameter.shape});
  }
  ASSIGN_OR_RETURN(auto file, file_system.Create(path));
  RETURN_IF_ERROR(file->Append(SafetensorsHeader(infos, {{"format", "pt"}})));
  std::string bytes;
  for (const TensorInfo& info : infos) {
    bytes.resize(info.end - info.begin);
    RETURN_IF_ERROR(checkpoint.ReadTensor(kParameterRole, absl::string_view(info.name).substr(prefix.size()), dtype,
                                          info.shape, absl::MakeSpan(bytes.data(), bytes.size())));
    RETURN_IF_ERROR(file->Append(bytes));
  }
  return file->Sync();
}

// Checks that the checkpoint is of this model. Returns the type of its parameters, which all have one type.
absl::StatusOr<std::string> CheckModel(const Checkpoint& checkpoint, const ModelDescription& model) {
  std::vector<WeightInfo> weights;
  std::string dtype = "F32";
  for (const ManifestTensor& tensor : checkpoint.manifest().tensors) {
    if (tensor.role != kParameterRole) continue;
    weights.push_back({tensor.name, tensor.dtype, tensor.shape});
    if (tensor.name == model.hugging_face.embedding) dtype = tensor.dtype;
  }
  absl::Status checked = CheckWeights(weights, model);
  if (checked.ok()) return dtype;
  return absl::FailedPreconditionError(absl::StrCat(checkpoint.path(), ": ", checked.message()));
}

}  // namespace

absl::Status ExportModel(const Checkpoint& checkpoint, const ModelSizes& sizes, const std::string& out,
                         FileSystem& file_system) {
  if (FileExists(out)) return absl::AlreadyExistsError(absl::StrCat(out, " already exists; name a new folder"));
  const ModelDescription model = DescribeModel(sizes);
  ASSIGN_OR_RETURN(std::string dtype, CheckModel(checkpoint, model));
  const std::string partial = absl::StrCat(out, kPartialSuffix);
  RETURN_IF_ERROR(file_system.MakeFolder(partial));
  absl::Cleanup remove_partial = [&] { file_system.RemoveAll(partial).IgnoreError(); };
  RETURN_IF_ERROR(WriteWeights(checkpoint, model, dtype, JoinPath(partial, kWeightsName), file_system));
  auto write = [&](const char* name, absl::string_view text) {
    return WriteText(JoinPath(partial, name), text, file_system);
  };
  RETURN_IF_ERROR(write(kConfigName, HuggingFaceConfig(sizes, dtype)));
  RETURN_IF_ERROR(write("generation_config.json", HuggingFaceGenerationConfig()));
  if (sizes.vocabulary == ByteTokenizer::kVocabulary) {
    RETURN_IF_ERROR(write("tokenizer.json", ByteTokenizerJson()));
    RETURN_IF_ERROR(write("tokenizer_config.json", ByteTokenizerConfigJson(sizes.context)));
    RETURN_IF_ERROR(write("README.md", kReadme));
  }
  RETURN_IF_ERROR(file_system.SyncFolder(partial));
  return PublishFolder(partial, out, file_system);
}

absl::StatusOr<ModelSizes> ReadModelConfig(const std::string& folder) {
  const std::string path = JoinPath(folder, kConfigName);
  ASSIGN_OR_RETURN(std::string text, ReadFile(path, kConfigBytesMax));
  return ParseHuggingFaceConfig(text, path);
}

absl::StatusOr<SavedCheckpoint> ImportModel(const std::string& folder, const ModelSizes& sizes,
                                            const std::string& run_folder, Manifest manifest, FileSystem& file_system) {
  ASSIGN_OR_RETURN(std::vector<StepFolder> existing, ListCheckpoints(run_folder));
  if (!existing.empty())
    return absl::AlreadyExistsError(absl::StrCat(existing[0].path, " already exists; name a new folder"));
  const ModelDescription model = DescribeModel(sizes);
  ASSIGN_OR_RETURN(std::unique_ptr<ForeignWeights> weights,
                   ForeignWeights::Open(JoinPath(folder, kWeightsName), model));
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
