#include "checkpoint/model_export.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/catalog.h"
#include "checkpoint/dtype_convert.h"
#include "checkpoint/foreign_weights.h"
#include "checkpoint/hugging_face_folder.h"
#include "checkpoint/merge_adapter.h"
#include "checkpoint/shard_writer.h"
#include "common/files.h"
#include "common/json_nesting.h"
#include "common/status_macros.h"
#include "models/adapter_config.h"
#include "models/hugging_face_config.h"
#include "models/lora_targets.h"
#include "models/model_description.h"
#include "tokenizers/byte_tokenizer.h"
#include "tokenizers/sentencepiece_model.h"
#include "tokenizers/tokenizer_json.h"

namespace trainyard {
namespace {

constexpr char kGenerationConfig[] = "generation_config.json";
constexpr char kChatTemplate[] = "chat_template.jinja";
// The files of a tokenizer, which are copied unchanged: those with its vocabulary, and those that may be next to them.
constexpr const char* kVocabularyFiles[] = {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model"};
constexpr const char* kTokenizerSettings[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                              kChatTemplate, "chat_template.json"};
constexpr uint64_t kCopiedBytesMax = 256 << 20;
constexpr int kTokenizerDepthMax = 64;

constexpr char kReadme[] =
    "A GPT-2 model in the form of the Python library transformers.\n\n"
    "Its vocabulary is the 256 values of a byte: token 65 is the byte 65, \"A\". There are no special tokens: neither\n"
    "beginning nor end of a text nor padding. tokenizer.json describes this, so any text is encoded and\n"
    "decoded without loss; a token is one byte of UTF-8, not one character.\n";

absl::Status WriteText(const std::string& path, absl::string_view text, FileSystem& file_system) {
  ASSIGN_OR_RETURN(auto file, file_system.Create(path));
  RETURN_IF_ERROR(file->Append(text));
  return file->Sync();
}

struct ExportedTensor {
  TensorInfo info;
  std::string name;                                // in the checkpoint
  std::string stored_dtype;                        // in the checkpoint
  const ProjectionDescription* adapted = nullptr;  // the projection whose adapter is merged into the tensor
};

// A checkpoint and the description of its model.
struct Source {
  const Checkpoint& checkpoint;
  ModelDescription model;
  std::map<std::string, std::string> stored;  // by the name of a parameter: its type in the checkpoint
};

// Divides the tensors among files without changing their order. Only a file with a single tensor may exceed the limit.
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

absl::StatusOr<std::string> ReadStored(const Source& source, const std::string& name, const std::string& dtype,
                                       const std::vector<int64_t>& shape) {
  std::string bytes(CountElements(shape).value_or(0) * DtypeBytes(dtype), '\0');
  RETURN_IF_ERROR(
      source.checkpoint.ReadTensor(kParameterRole, name, dtype, shape, absl::MakeSpan(bytes.data(), bytes.size())));
  return bytes;
}

// Returns the values of the tensor with its adapter merged, in type `dtype`.
absl::StatusOr<std::string> ReadMerged(const Source& source, const ExportedTensor& tensor, const std::string& weight,
                                       absl::string_view dtype) {
  const auto read = [&](int index, std::string& stored) {
    const ParameterDescription& parameter = source.model.parameters[static_cast<size_t>(index)];
    stored = source.stored.at(parameter.name);
    return ReadStored(source, parameter.name, stored, parameter.shape);
  };
  std::string a_dtype, b_dtype;
  ASSIGN_OR_RETURN(const std::string a, read(tensor.adapted->lora_a, a_dtype));
  ASSIGN_OR_RETURN(const std::string b, read(tensor.adapted->lora_b, b_dtype));
  const LoraSettings& lora = source.model.sizes.lora;
  return MergeAdapter(*tensor.adapted, lora.rank, LoraScale(lora), {weight, tensor.stored_dtype}, {a, a_dtype},
                      {b, b_dtype}, dtype);
}

// Returns the values of the tensor in the type of the export. Fails with InvalidArgument if it cannot hold a value.
absl::StatusOr<std::string> ReadForExport(const Source& source, const ExportedTensor& tensor) {
  const std::string& stored = tensor.stored_dtype;
  const std::string& dtype = tensor.info.dtype;
  ASSIGN_OR_RETURN(std::string bytes, ReadStored(source, tensor.name, stored, tensor.info.shape));
  if (tensor.adapted == nullptr) {
    if (stored == dtype) return bytes;
    return ConvertWeights(tensor.name, bytes, stored, dtype);
  }
  ASSIGN_OR_RETURN(std::string merged, ReadMerged(source, tensor, bytes, dtype));
  if (!HasNonfinite(dtype, merged)) return merged;
  // The exact values, which need more memory, show whether the type is the cause.
  ASSIGN_OR_RETURN(const std::string exact, ReadMerged(source, tensor, bytes, "F64"));
  RETURN_IF_ERROR(CheckNoOverflow(tensor.name, exact, "F64", merged, dtype));
  return merged;
}

absl::Status WriteFileOfWeights(const Source& source, const std::vector<ExportedTensor>& tensors,
                                const std::string& path, FileSystem& file_system) {
  std::vector<TensorInfo> infos;
  for (const ExportedTensor& tensor : tensors) infos.push_back(tensor.info);
  ASSIGN_OR_RETURN(auto file, file_system.Create(path));
  RETURN_IF_ERROR(file->Append(SafetensorsHeader(infos, {{"format", "pt"}})));
  for (const ExportedTensor& tensor : tensors) {
    ASSIGN_OR_RETURN(const std::string bytes, ReadForExport(source, tensor));
    RETURN_IF_ERROR(file->Append(bytes));
  }
  return file->Sync();
}

absl::Status WriteWeights(const Source& source, const std::vector<ExportedTensor>& tensors, uint64_t max_shard_bytes,
                          const std::string& folder, FileSystem& file_system) {
  const auto files = SplitTensors(tensors, max_shard_bytes);
  if (files.size() == 1) {
    return WriteFileOfWeights(source, files[0], JoinPath(folder, kWeightsName), file_system);
  }
  nlohmann::json weight_map = nlohmann::json::object();
  uint64_t elements = 0, bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, files.size());
    RETURN_IF_ERROR(WriteFileOfWeights(source, files[i], JoinPath(folder, name), file_system));
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

// Checks that the checkpoint is of this model.
absl::StatusOr<Source> OpenSource(const Checkpoint& checkpoint, const ModelSizes& sizes) {
  Source source{.checkpoint = checkpoint, .model = DescribeModel(sizes), .stored = {}};
  std::vector<WeightInfo> weights;
  for (const ManifestTensor& tensor : checkpoint.manifest().tensors) {
    if (tensor.role != kParameterRole) continue;
    weights.push_back({tensor.name, tensor.dtype, tensor.shape});
    source.stored[tensor.name] = tensor.dtype;
  }
  if (absl::Status checked = CheckWeights(weights, source.model); !checked.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(checkpoint.path(), ": ", checked.message()));
  }
  return source;
}

// The parameters of the model without adapters, or those of the adapters, in the order of export.
std::vector<ExportedTensor> TensorsOf(const Source& source, bool of_adapters, const std::string& dtype) {
  std::map<std::string, const ProjectionDescription*> adapted;
  for (const ProjectionDescription& projection : source.model.projections) {
    if (projection.lora_a >= 0) adapted[projection.name + ".weight"] = &projection;
  }
  std::vector<ExportedTensor> tensors;
  for (const ParameterDescription& parameter : source.model.ParametersInExportOrder()) {
    if (IsAdapterName(parameter.name) != of_adapters) continue;
    const std::string& stored_dtype = source.stored.at(parameter.name);
    const auto projection = adapted.find(parameter.name);
    tensors.push_back({.info = {.name = of_adapters ? PeftName(source.model, parameter.name)
                                                    : HuggingFaceName(source.model, parameter.name),
                                .dtype = dtype.empty() ? stored_dtype : dtype,
                                .shape = parameter.shape},
                       .name = parameter.name,
                       .stored_dtype = stored_dtype,
                       .adapted = projection == adapted.end() ? nullptr : projection->second});
  }
  return tensors;
}

absl::Status CheckOptions(const std::string& out, const ExportOptions& options) {
  if (FileExists(out)) return absl::AlreadyExistsError(absl::StrCat(out, " already exists; name a new folder"));
  if (options.max_shard_bytes == 0) {
    return absl::InvalidArgumentError("the limit on the bytes of an exported file is 0; expected 1 or more");
  }
  if (options.dtype.empty() || IsFloating(options.dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cannot export weights of type '", options.dtype, "'; expected F64, F32, F16 or BF16"));
}

// Copies those of `names` that exist in the folder `from` and are not in `written`, and adds them to `written`. The
// checkpoint gives the folder, which another user may have made, so ReadFileToPassOn checks each file.
absl::Status CopyFiles(const std::string& from, absl::Span<const char* const> names, const std::string& to,
                       FileSystem& file_system, std::set<std::string>& written) {
  for (const char* name : names) {
    const std::string source = JoinPath(from, name);
    if (written.count(name) > 0 || !FileExists(source)) continue;
    ASSIGN_OR_RETURN(const std::string bytes, ReadFileToPassOn(source, kCopiedBytesMax));
    RETURN_IF_ERROR(WriteText(JoinPath(to, name), bytes, file_system));
    written.insert(name);
  }
  return absl::OkStatus();
}

// Returns the name that transformers expects for a tokenizer's file. Fails with InvalidArgument if the file is not a
// tokenizer, because the checkpoint gives the path, and a checkpoint of another user could give the path of a private
// file of the exporting user.
absl::StatusOr<std::string> NameOfTokenizer(const std::string& bytes, const std::string& path) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || bytes[first] != '{') {
    RETURN_IF_ERROR(ReadSentencePieceModel(bytes, path).status());
    return std::string("tokenizer.model");
  }
  const nlohmann::json json = JsonNestsDeeperThan(bytes, kTokenizerDepthMax)
                                  ? nlohmann::json()
                                  : nlohmann::json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("model") && json["model"].is_object()) return std::string("tokenizer.json");
  return absl::InvalidArgumentError(absl::StrCat(path, " is not a tokenizer.json: expected an object with a 'model'"));
}

// Copies the tokenizer whose folder or file is `from`.
absl::Status CopyTokenizer(const std::string& from, const std::string& to, FileSystem& file_system,
                           std::set<std::string>& written) {
  std::error_code ignored;
  if (std::filesystem::is_directory(from, ignored)) {
    RETURN_IF_ERROR(CopyFiles(from, kVocabularyFiles, to, file_system, written));
    return CopyFiles(from, kTokenizerSettings, to, file_system, written);
  }
  ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(from, kCopiedBytesMax));
  ASSIGN_OR_RETURN(const std::string name, NameOfTokenizer(bytes, from));
  RETURN_IF_ERROR(WriteText(JoinPath(to, name), bytes, file_system));
  written.insert(name);
  return CopyFiles(std::filesystem::path(from).parent_path().string(), kTokenizerSettings, to, file_system, written);
}

// Writes the files next to the weights and config.json.
absl::Status WriteOtherFiles(const ModelSizes& sizes, const ExportOptions& options, const std::string& folder,
                             FileSystem& file_system) {
  std::set<std::string> written;
  const auto write = [&](const char* name, absl::string_view text) {
    written.insert(name);
    return WriteText(JoinPath(folder, name), text, file_system);
  };
  if (!options.source_folder.empty()) {
    RETURN_IF_ERROR(CopyFiles(options.source_folder, {kGenerationConfig}, folder, file_system, written));
  }
  // A model that came with a config.json but without generation_config.json has its end tokens in its config.json,
  // where transformers finds them.
  if (written.empty() && options.source_config.empty()) {
    RETURN_IF_ERROR(write(kGenerationConfig, HuggingFaceGenerationConfig()));
  }
  if (!options.chat_template.empty()) {
    RETURN_IF_ERROR(write(kChatTemplate, options.chat_template));
  }
  if (!options.tokenizer.empty()) {
    RETURN_IF_ERROR(CopyTokenizer(options.tokenizer, folder, file_system, written));
  }
  const bool has_tokenizer = written.count("tokenizer.json") > 0 || written.count("tokenizer.model") > 0;
  if (sizes.vocabulary != ByteTokenizer::kVocabulary || has_tokenizer) return absl::OkStatus();
  RETURN_IF_ERROR(write("tokenizer.json", ByteTokenizerJson()));
  RETURN_IF_ERROR(write("tokenizer_config.json", ByteTokenizerConfigJson(sizes.context)));
  const bool is_gpt2 = sizes.family == ModelFamily::kGpt2;
  return write("README.md", is_gpt2 ? kReadme : absl::StrReplaceAll(kReadme, {{"GPT-2 ", ""}}));
}

}  // namespace

absl::Status ExportModel(const Checkpoint& checkpoint, const ModelSizes& sizes, const std::string& out,
                         FileSystem& file_system, const ExportOptions& options) {
  RETURN_IF_ERROR(CheckOptions(out, options));
  if (sizes.family == ModelFamily::kMlp) {
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.path(),
                     " has a classifier, a family that transformers does not have; a job with "
                     "checkpoint.format full stores its weights in one safetensors file"));
  }
  ASSIGN_OR_RETURN(const Source source, OpenSource(checkpoint, sizes));
  const std::vector<ExportedTensor> tensors = TensorsOf(source, /*of_adapters=*/false, options.dtype);
  const std::string& dtype = tensors[0].info.dtype;
  std::string config = HuggingFaceConfig(sizes, dtype);
  if (!options.source_config.empty()) {
    ASSIGN_OR_RETURN(config, ConfigWithType(options.source_config, dtype));
  }
  const std::string partial = absl::StrCat(out, kPartialSuffix);
  RETURN_IF_ERROR(file_system.MakeFolder(partial));
  absl::Cleanup remove_partial = [&] { file_system.RemoveAll(partial).IgnoreError(); };
  RETURN_IF_ERROR(WriteWeights(source, tensors, options.max_shard_bytes, partial, file_system));
  RETURN_IF_ERROR(WriteText(JoinPath(partial, kConfigName), config, file_system));
  RETURN_IF_ERROR(WriteOtherFiles(sizes, options, partial, file_system));
  RETURN_IF_ERROR(file_system.SyncFolder(partial));
  return PublishNewFolder(partial, out, file_system, remove_partial);
}

absl::Status ExportAdapter(const Checkpoint& checkpoint, const ModelSizes& sizes, const std::string& base,
                           const std::string& out, FileSystem& file_system, const std::string& dtype) {
  ExportOptions options;
  options.dtype = dtype;
  RETURN_IF_ERROR(CheckOptions(out, options));
  if (sizes.lora.rank == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.path(), " has no adapters: its job did not have train.lora; export the whole model"));
  }
  ASSIGN_OR_RETURN(const Source source, OpenSource(checkpoint, sizes));
  const std::string partial = absl::StrCat(out, kPartialSuffix);
  RETURN_IF_ERROR(file_system.MakeFolder(partial));
  absl::Cleanup remove_partial = [&] { file_system.RemoveAll(partial).IgnoreError(); };
  RETURN_IF_ERROR(WriteFileOfWeights(source, TensorsOf(source, /*of_adapters=*/true, dtype),
                                     JoinPath(partial, kAdapterWeightsName), file_system));
  RETURN_IF_ERROR(WriteText(JoinPath(partial, kAdapterConfigName), AdapterConfigText(source.model, base), file_system));
  RETURN_IF_ERROR(file_system.SyncFolder(partial));
  return PublishNewFolder(partial, out, file_system, remove_partial);
}

}  // namespace trainyard
