#include "checkpoint/model_export.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/catalog.h"
#include "checkpoint/dtype_convert.h"
#include "checkpoint/foreign_weights.h"
#include "checkpoint/hugging_face_folder.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "models/hugging_face_config.h"
#include "models/model_description.h"
#include "tokenizers/byte_tokenizer.h"
#include "tokenizers/tokenizer_json.h"

namespace trainyard {
namespace {

// What belongs to a tokenizer or to generation, copied byte for byte.
constexpr const char* kCopiedFiles[] = {"generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "chat_template.jinja",
                                        "chat_template.json"};
constexpr uint64_t kCopiedBytesMax = 256 << 20;

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

struct ExportedTensor {
  TensorInfo info;
  std::string name;          // in the checkpoint
  std::string stored_dtype;  // in the checkpoint
};

// The tensors of each file, in the order of transformers, none of them larger than the limit unless it has one tensor.
std::vector<std::vector<ExportedTensor>> SplitTensors(const std::vector<ExportedTensor>& tensors, uint64_t bytes_max) {
  std::vector<std::vector<ExportedTensor>> files(1);
  uint64_t bytes = 0;
  for (const ExportedTensor& tensor : tensors) {
    const uint64_t own = CountElements(tensor.info.shape).value_or(0) * DtypeBytes(tensor.info.dtype);
    if (!files.back().empty() && (bytes > bytes_max || own > bytes_max - bytes)) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += own;
    files.back().push_back(tensor);
  }
  return files;
}

absl::Status WriteFileOfWeights(const Checkpoint& checkpoint, const std::vector<ExportedTensor>& tensors,
                                const std::string& path, FileSystem& file_system) {
  std::vector<TensorInfo> infos;
  for (const ExportedTensor& tensor : tensors) infos.push_back(tensor.info);
  ASSIGN_OR_RETURN(auto file, file_system.Create(path));
  RETURN_IF_ERROR(file->Append(SafetensorsHeader(infos, {{"format", "pt"}})));
  std::string bytes;
  for (const auto& [info, name, stored] : tensors) {
    bytes.resize(CountElements(info.shape).value_or(0) * DtypeBytes(stored));
    RETURN_IF_ERROR(
        checkpoint.ReadTensor(kParameterRole, name, stored, info.shape, absl::MakeSpan(bytes.data(), bytes.size())));
    if (stored != info.dtype) {
      RETURN_IF_ERROR(file->Append(ConvertValues(bytes, stored, info.dtype)));
    } else {
      RETURN_IF_ERROR(file->Append(bytes));
    }
  }
  return file->Sync();
}

absl::Status WriteWeights(const Checkpoint& checkpoint, const std::vector<ExportedTensor>& tensors,
                          uint64_t max_shard_bytes, const std::string& folder, FileSystem& file_system) {
  const auto files = SplitTensors(tensors, max_shard_bytes);
  if (files.size() == 1) {
    return WriteFileOfWeights(checkpoint, files[0], JoinPath(folder, kWeightsName), file_system);
  }
  nlohmann::json weight_map = nlohmann::json::object();
  uint64_t elements = 0, bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, files.size());
    RETURN_IF_ERROR(WriteFileOfWeights(checkpoint, files[i], JoinPath(folder, name), file_system));
    for (const ExportedTensor& tensor : files[i]) {
      weight_map[tensor.info.name] = name;
      const uint64_t own = CountElements(tensor.info.shape).value_or(0);
      elements += own;
      bytes += own * DtypeBytes(tensor.info.dtype);
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_parameters", elements}, {"total_size", bytes}}},
                                {"weight_map", weight_map}};
  return WriteText(JoinPath(folder, kWeightsIndexName), index.dump(2) + "\n", file_system);
}

// Checks that the checkpoint is of this model. Returns its parameters in the order of export.
absl::StatusOr<std::vector<ExportedTensor>> TensorsOf(const Checkpoint& checkpoint, const ModelDescription& model,
                                                      const std::string& dtype) {
  std::vector<WeightInfo> weights;
  std::map<std::string, std::string> stored;
  for (const ManifestTensor& tensor : checkpoint.manifest().tensors) {
    if (tensor.role != kParameterRole) continue;
    weights.push_back({tensor.name, tensor.dtype, tensor.shape});
    stored[tensor.name] = tensor.dtype;
  }
  if (absl::Status checked = CheckWeights(weights, model); !checked.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(checkpoint.path(), ": ", checked.message()));
  }
  std::vector<ExportedTensor> tensors;
  for (const ParameterDescription& parameter : model.ParametersInExportOrder()) {
    const std::string& stored_dtype = stored.at(parameter.name);
    tensors.push_back({.info = {.name = HuggingFaceName(model, parameter.name),
                                .dtype = dtype.empty() ? stored_dtype : dtype,
                                .shape = parameter.shape},
                       .name = parameter.name,
                       .stored_dtype = stored_dtype});
  }
  return tensors;
}

// Copies the files of the tokenizer that are there. Returns their names.
absl::StatusOr<std::vector<std::string>> CopyFiles(const std::string& from, const std::string& to,
                                                   FileSystem& file_system) {
  std::vector<std::string> copied;
  for (const char* name : kCopiedFiles) {
    const std::string source = JoinPath(from, name);
    if (from.empty() || !FileExists(source)) continue;
    ASSIGN_OR_RETURN(const std::string bytes, ReadFile(source, kCopiedBytesMax));
    RETURN_IF_ERROR(WriteText(JoinPath(to, name), bytes, file_system));
    copied.push_back(name);
  }
  return copied;
}

}  // namespace

absl::Status ExportModel(const Checkpoint& checkpoint, const ModelSizes& sizes, const std::string& out,
                         FileSystem& file_system, const ExportOptions& options) {
  if (FileExists(out)) return absl::AlreadyExistsError(absl::StrCat(out, " already exists; name a new folder"));
  if (options.max_shard_bytes == 0 || (!options.dtype.empty() && !IsFloating(options.dtype))) {
    return absl::InvalidArgumentError(absl::StrCat("cannot export files of ", options.max_shard_bytes,
                                                   " bytes with weights of type '", options.dtype, "'"));
  }
  const ModelDescription model = DescribeModel(sizes);
  ASSIGN_OR_RETURN(const std::vector<ExportedTensor> tensors, TensorsOf(checkpoint, model, options.dtype));
  const std::string& dtype = tensors[0].info.dtype;
  std::string config = HuggingFaceConfig(sizes, dtype);
  if (!options.source_config.empty()) {
    ASSIGN_OR_RETURN(config, ConfigWithType(options.source_config, dtype));
  }
  const std::string partial = absl::StrCat(out, kPartialSuffix);
  RETURN_IF_ERROR(file_system.MakeFolder(partial));
  absl::Cleanup remove_partial = [&] { file_system.RemoveAll(partial).IgnoreError(); };
  RETURN_IF_ERROR(WriteWeights(checkpoint, tensors, options.max_shard_bytes, partial, file_system));
  auto write = [&](const char* name, absl::string_view text) {
    return WriteText(JoinPath(partial, name), text, file_system);
  };
  RETURN_IF_ERROR(write(kConfigName, config));
  ASSIGN_OR_RETURN(const std::vector<std::string> copied, CopyFiles(options.source_folder, partial, file_system));
  const auto has = [&](absl::string_view name) {
    return std::find(copied.begin(), copied.end(), name) != copied.end();
  };
  if (!has("generation_config.json")) {
    RETURN_IF_ERROR(write("generation_config.json", HuggingFaceGenerationConfig()));
  }
  if (sizes.vocabulary == ByteTokenizer::kVocabulary && !has("tokenizer.json") && !has("tokenizer.model")) {
    RETURN_IF_ERROR(write("tokenizer.json", ByteTokenizerJson()));
    RETURN_IF_ERROR(write("tokenizer_config.json", ByteTokenizerConfigJson(sizes.context)));
    const bool is_gpt2 = sizes.family == ModelFamily::kGpt2;
    RETURN_IF_ERROR(write("README.md", is_gpt2 ? kReadme : absl::StrReplaceAll(kReadme, {{"GPT-2 ", ""}})));
  }
  RETURN_IF_ERROR(file_system.SyncFolder(partial));
  return PublishFolder(partial, out, file_system);
}

}  // namespace trainyard
