#include "models/hugging_face_config.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/nearest_name.h"
#include "models/config_reader.h"
#include "models/gpt2_config.h"
#include "models/llama_config.h"

namespace trainyard {
namespace {

constexpr ModelFamily kFamilies[] = {ModelFamily::kGpt2, ModelFamily::kLlama, ModelFamily::kMistral,
                                     ModelFamily::kQwen2};

constexpr int64_t kLayersMax = 1024;  // the limit of train.model.layers

nlohmann::ordered_json GenerationConfig() {
  return {{"bos_token_id", nullptr}, {"eos_token_id", nullptr}, {"pad_token_id", nullptr},
          {"do_sample", true},       {"temperature", 0.8},      {"max_new_tokens", 300}};
}

// Returns a note for the message about an unknown model type, such as the next version of a family. The note names the
// known family with the nearest name; it is empty if no name is near.
std::string NearestFamily(const nlohmann::json& json) {
  const auto type = json.find("model_type");
  if (type == json.end() || !type->is_string()) return "";
  std::vector<std::string> names;
  for (ModelFamily family : kFamilies) names.emplace_back(FamilyName(family));
  const std::string nearest = NearestName(type->get<std::string>(), names);
  return nearest.empty() ? "" : absl::StrCat(" (the nearest is \"", nearest, "\", but its architecture may differ)");
}

ModelSizes ReadSizes(ConfigReader& reader) {
  reader.CheckOptional("quantization_config", nullptr);
  std::vector<std::string> names;
  for (ModelFamily family : kFamilies) {
    names.push_back(absl::StrCat("\"", FamilyName(family), "\""));
    if (!reader.Has("model_type") || reader.json().at("model_type") != std::string(FamilyName(family))) continue;
    const bool is_gpt2 = family == ModelFamily::kGpt2;
    const ModelSizes sizes = is_gpt2 ? ReadGpt2Config(reader) : ReadLlamaConfig(family, reader);
    // Checked here, because descriptions of a model have entries for each layer, which could fill the memory.
    if (sizes.layers > kLayersMax) {
      reader.AddProblem(is_gpt2 ? "n_layer" : "num_hidden_layers", absl::StrCat("at most ", kLayersMax));
    }
    return sizes;
  }
  reader.AddProblem("model_type", absl::StrCat("one of ", absl::StrJoin(names, ", "), NearestFamily(reader.json())));
  return {};
}

absl::string_view AttentionBiasName(AttentionBias bias) {
  if (bias == AttentionBias::kNone) return "none";
  return bias == AttentionBias::kAll ? "all" : "qkv";
}

std::vector<std::string> ProblemsOfExport(const ModelSizes& sizes) {
  std::vector<std::string> problems;
  if (!IsLlamaGraph(sizes.family)) return problems;
  const bool is_llama = sizes.family == ModelFamily::kLlama;
  bool valid = sizes.attention_bias == AttentionBias::kNone;
  const char* expected = "none";
  if (sizes.family == ModelFamily::kQwen2) {
    valid = sizes.attention_bias == AttentionBias::kQkv;
    expected = "qkv";
  } else if (is_llama) {
    valid = sizes.attention_bias != AttentionBias::kQkv;
    expected = "none or all";
  }
  if (!valid) {
    problems.push_back(absl::StrCat("attention_bias must be ", expected, ", because the family has no other kind",
                                    "; found ", AttentionBiasName(sizes.attention_bias)));
  }
  if (sizes.mlp_bias && !is_llama) problems.push_back("mlp_bias must be false, because only llama can have it");
  if (sizes.window != 0 && is_llama) problems.push_back("window must be 0, because llama has no sliding window");
  if (sizes.window < 0) problems.push_back(absl::StrCat("window must not be negative, found ", sizes.window));
  return problems;
}

}  // namespace

std::string HuggingFaceConfig(const ModelSizes& sizes, absl::string_view dtype) {
  return (IsLlamaGraph(sizes.family) ? LlamaConfig(sizes, dtype) : Gpt2Config(sizes, dtype)).dump(2) + "\n";
}

absl::Status CheckExportable(const ModelSizes& sizes) {
  const std::vector<std::string> problems = ProblemsOfExport(sizes);
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a ", FamilyName(sizes.family), " model: ", absl::StrJoin(problems, "; ")));
}

absl::StatusOr<std::string> ConfigWithType(absl::string_view text, absl::string_view dtype) {
  if (absl::StatusOr<ModelSizes> sizes = ParseHuggingFaceConfig(text, "config.json"); !sizes.ok())
    return sizes.status();
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  // Version 4 of transformers writes torch_dtype, version 5 dtype; both versions read both.
  const char* key = config.contains("torch_dtype") && !config.contains("dtype") ? "torch_dtype" : "dtype";
  config[key] = TorchTypeName(dtype);
  if (config.contains("torch_dtype")) config["torch_dtype"] = TorchTypeName(dtype);
  return config.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string HuggingFaceGenerationConfig() { return GenerationConfig().dump(2) + "\n"; }

absl::StatusOr<ModelSizes> ParseHuggingFaceConfig(absl::string_view text, absl::string_view path) {
  const absl::StatusOr<nlohmann::json> json = ParseConfigObject(text, path);
  if (!json.ok()) return json.status();
  ConfigReader reader(*json);
  const ModelSizes sizes = ReadSizes(reader);
  const std::vector<std::string>& problems = reader.problems();
  if (problems.empty()) return sizes;
  return absl::InvalidArgumentError(
      absl::StrCat(path, " describes a model that cannot be trained here: ", absl::StrJoin(problems, "; ")));
}

}  // namespace trainyard
