#include "worker/trainer/text_model.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/catalog.h"
#include "checkpoint/foreign_weights.h"
#include "checkpoint/hugging_face_folder.h"
#include "common/files.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "common/tensor_roles.h"
#include "tokenizers/byte_tokenizer.h"
#include "tokenizers/open_tokenizer.h"
#include "worker/link/spec_config.h"
#include "worker/model/model_factory.h"
#include "worker/saving/state.h"
#include "worker/trainer/rank.h"

namespace trainyard {
namespace {

constexpr char kBytes[] = "bytes";
constexpr char kOtherTokenizer[] =
    "--tokenizer PATH selects another tokenizer, --tokenizer bytes uses one token per byte";
constexpr char kGenerationConfigName[] = "generation_config.json";
constexpr uint64_t kGenerationConfigBytesMax = 1 << 20;

absl::Span<char> BytesOf(const at::Tensor& tensor) {
  return {static_cast<char*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

// Adds the value of eos_token_id, a number or a list of them, in the text of a configuration.
void AddEndTokens(absl::string_view config, std::vector<int64_t>& ends) {
  const auto json = nlohmann::json::parse(config.begin(), config.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("eos_token_id")) return;
  const nlohmann::json& value = json["eos_token_id"];
  for (const nlohmann::json& end : value.is_array() ? value : nlohmann::json::array({value})) {
    if (end.is_number_integer()) ends.push_back(end.get<int64_t>());
  }
}

// Opens the tokenizer and finds the tokens that end a text: the tokenizer's, and those that generation_config.json next
// to it lists; without that file, those of config.json.
absl::Status AddTokenizer(const std::string& path, const std::string& config, TextModel& text_model) {
  ASSIGN_OR_RETURN(text_model.tokenizer, OpenTokenizer(path));
  if (path == kBytes) {
    text_model.encoder = NewByteEncoder();
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(text_model.encoder, OpenTextEncoder(path));
  if (const int64_t end = text_model.tokenizer->special().end; end >= 0) text_model.ends.push_back(end);
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const std::string folder = is_folder ? path : std::filesystem::path(path).parent_path().string();
  const auto generation = ReadRegularFile(JoinPath(folder, kGenerationConfigName), kGenerationConfigBytesMax);
  if (!generation.ok() && !absl::IsNotFound(generation.status())) return generation.status();
  AddEndTokens(generation.ok() ? *generation : config, text_model.ends);
  return absl::OkStatus();
}

// Fails with FailedPrecondition if the checkpoint has parameters that the model lacks: without them the model would
// compute something else.
absl::Status CheckNothingIsLeftOut(const Checkpoint& checkpoint, const Model& model) {
  std::set<absl::string_view> known;
  for (const NamedTensor& parameter : model.parameters()) known.insert(parameter.name);
  std::vector<std::string> unknown;
  for (const ManifestTensor& tensor : checkpoint.manifest().tensors) {
    if (tensor.role == kParameterRole && !known.contains(tensor.name)) unknown.push_back(tensor.name);
  }
  if (unknown.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(checkpoint.path(), " has parameters that the model of its job lacks: ", JoinFirst(unknown, 3),
                   "; it was written by another version"));
}

// Whether a model whose job names no tokenizer's path was trained on bytes. Jobs that leave the fields of JSONL to its
// first line, and imported checkpoints, show this only by the size of the vocabulary.
bool IsTrainedOnBytes(const TrainConfig& config) {
  const TrainConfig::Data& data = config.data;
  const bool has_text_fields = !data.fields.text.empty() || !data.fields.prompt.empty();
  return !data.text.empty() || (!data.jsonl.empty() && has_text_fields) ||
         config.model.vocabulary == ByteTokenizer::kVocabulary;
}

absl::StatusOr<TextModel> OpenCheckpointModel(const std::string& source, const std::string& tokenizer) {
  std::vector<std::string> skipped;  // not printed: the output names the checkpoint that was used
  absl::StatusOr<std::unique_ptr<Checkpoint>> opened = OpenCheckpointOrNewest(source, skipped);
  if (absl::IsNotFound(opened.status())) {
    return absl::NotFoundError(absl::StrCat(opened.status().message(), "; ", source, " also lacks the ", kConfigName,
                                            " of a model that transformers wrote"));
  }
  RETURN_IF_ERROR(opened.status());
  const std::shared_ptr<Checkpoint> checkpoint = *std::move(opened);
  const Manifest& manifest = checkpoint->manifest();
  ASSIGN_OR_RETURN(TrainConfig config, ModelConfigFromSpec(manifest.spec), << checkpoint->path());
  if (config.model.family == ModelFamily::kMlp) {
    return absl::InvalidArgumentError(absl::StrCat(checkpoint->path(), " has a classifier of numbers, not of text"));
  }
  const std::string& own = config.data.tokenizer_path;
  if (tokenizer.empty() && own.empty() && !IsTrainedOnBytes(config)) {
    return absl::InvalidArgumentError(absl::StrCat(checkpoint->path(), " does not name the tokenizer of its ",
                                                   config.model.vocabulary,
                                                   " tokens; give --tokenizer PATH, or --tokenizer ", kBytes,
                                                   " if the tokens below ", ByteTokenizer::kVocabulary, " are bytes"));
  }
  TextModel text_model{.path = checkpoint->path(), .step = manifest.step};
  ASSIGN_OR_RETURN(text_model.model, MakeModel(config, /*backed=*/false));
  RETURN_IF_ERROR(CheckNothingIsLeftOut(*checkpoint, *text_model.model));
  text_model.read = [checkpoint](const NamedTensor& parameter) {
    const at::Tensor values = parameter.tensor.detach();
    return checkpoint->ReadTensor(kParameterRole, parameter.name, DtypeOf(values.scalar_type()), values.sizes().vec(),
                                  BytesOf(values));
  };
  const std::string path = !tokenizer.empty() ? tokenizer : own.empty() ? kBytes : own;
  RETURN_IF_ERROR(AddTokenizer(path, config.model_config, text_model))
      << (tokenizer.empty() ? absl::StrCat("it is the tokenizer of ", checkpoint->path(), "; ", kOtherTokenizer)
                            : "given by --tokenizer");
  // Documents of JSONL end with a token also if they are bytes; plain text of bytes has none.
  const bool has_byte_documents = own.empty() && path == kBytes && IsTrainedOnBytes(config) &&
                                  !config.data.jsonl.empty() && config.data.fields.input_ids.empty();
  if (has_byte_documents) text_model.encoder->End(text_model.ends);
  text_model.hides_ends = has_byte_documents;
  return text_model;
}

absl::StatusOr<TextModel> OpenFolderModel(const std::string& folder, const std::string& tokenizer) {
  ASSIGN_OR_RETURN(const std::string config, ReadConfigText(folder));
  ASSIGN_OR_RETURN(const ModelSizes sizes, ReadModelConfig(folder));
  ASSIGN_OR_RETURN(std::unique_ptr<ForeignWeights> opened, ForeignWeights::Open(folder, DescribeModel(sizes)));
  const std::shared_ptr<const ForeignWeights> weights = std::move(opened);
  TextModel text_model{.path = folder};
  ASSIGN_OR_RETURN(text_model.model, NewModel(sizes, /*seed=*/0, at::kFloat, /*backed=*/false));
  text_model.read = [weights](const NamedTensor& parameter) {
    const at::Tensor values = parameter.tensor.detach();
    return weights->ReadRange(parameter.name, 0, static_cast<uint64_t>(values.numel()), DtypeOf(values.scalar_type()),
                              BytesOf(values));
  };
  RETURN_IF_ERROR(AddTokenizer(tokenizer.empty() ? folder : tokenizer, config, text_model))
      << (tokenizer.empty() ? kOtherTokenizer : "given by --tokenizer");
  return text_model;
}

}  // namespace

absl::StatusOr<TextModel> OpenTextModel(const std::string& source, const std::string& tokenizer) {
  if (FileExists(JoinPath(source, kConfigName)) && !FileExists(JoinPath(source, kManifestName))) {
    return OpenFolderModel(source, tokenizer);
  }
  return OpenCheckpointModel(source, tokenizer);
}

absl::Status LoadWeights(TextModel& text_model, const std::function<bool(int64_t, int64_t)>& progress) {
  at::NoGradGuard no_grad;
  Model& model = *text_model.model;
  model.set_initial_values([](int, const at::Tensor&) {});  // all are read below
  model.Materialize();
  int64_t done = 0, total = 0;
  for (const NamedTensor& parameter : model.parameters()) total += static_cast<int64_t>(parameter.tensor.nbytes());
  for (const NamedTensor& parameter : model.parameters()) {
    RETURN_IF_ERROR(text_model.read(parameter)) << text_model.path;
    done += static_cast<int64_t>(parameter.tensor.nbytes());
    if (!progress(done, total)) return absl::CancelledError("interrupted");
  }
  text_model.read = nullptr;  // closes the files
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> TokensOfPrompt(const std::string& prompt, const TextModel& text_model) {
  std::vector<int64_t> tokens;
  RETURN_IF_ERROR(text_model.encoder->Append(prompt, /*begins=*/true, tokens));
  if (tokens.empty()) {
    return absl::InvalidArgumentError("the prompt has no token: give at least one character to continue from");
  }
  const int64_t vocabulary = text_model.model->vocabulary();
  const auto unknown = std::find_if(tokens.begin(), tokens.end(), [&](int64_t token) { return token >= vocabulary; });
  if (unknown == tokens.end()) return tokens;
  return absl::InvalidArgumentError(absl::StrCat("the prompt has token ", *unknown, ", but the model's vocabulary is ",
                                                 vocabulary, "; the model was trained with another tokenizer"));
}

}  // namespace trainyard
