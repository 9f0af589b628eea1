#include "models/adapter_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/config_reader.h"
#include "models/lora_targets.h"

namespace trainyard {
namespace {

constexpr int64_t kRankMax = 65536;  // the limit of train.lora.rank
// The values that PEFT uses for missing keys.
constexpr int64_t kPeftRank = 8;
constexpr double kPeftAlpha = 8;

// Keys that are read here, that describe where the adapter comes from, or that have no effect without another key.
constexpr const char* kAcceptedKeys[] = {"r",
                                         "lora_alpha",
                                         "lora_dropout",
                                         "target_modules",
                                         "fan_in_fan_out",
                                         "use_rslora",
                                         "bias",
                                         "peft_type",
                                         "task_type",
                                         "init_lora_weights",
                                         "base_model_name_or_path",
                                         "revision",
                                         "peft_version",
                                         "auto_mapping",
                                         "inference_mode",
                                         "megatron_core",
                                         "qalora_group_size",
                                         "loftq_config",
                                         "eva_config",
                                         "corda_config",
                                         "lora_ga_config",
                                         "runtime_config"};

// Whether a key with this value has no effect, because its feature is not used.
bool IsNeutral(const nlohmann::json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

void CheckOtherKeys(ConfigReader& reader) {
  for (const auto& [key, value] : reader.json().items()) {
    const bool accepted = std::find(std::begin(kAcceptedKeys), std::end(kAcceptedKeys), key) != std::end(kAcceptedKeys);
    if (!accepted && !IsNeutral(value)) reader.AddProblem(key.c_str(), "no value, because it is not supported");
  }
}

// Initialisations that also change the model's own matrices need the changed matrices, which no file contains.
void CheckInitialisation(ConfigReader& reader) {
  if (!reader.Has("init_lora_weights") || !reader.json().at("init_lora_weights").is_string()) return;
  const std::string& name = reader.json().at("init_lora_weights").get_ref<const std::string&>();
  for (const char* prefix : {"pissa", "olora", "corda", "loftq", "lora_ga"}) {
    if (!absl::StartsWith(name, prefix)) continue;
    reader.AddProblem("init_lora_weights",
                      "an initialisation that leaves the model's own matrices unchanged (convert the adapter by "
                      "save_pretrained with path_initial_model_for_weight_conversion)");
  }
}

std::vector<std::string> ReadTargets(ConfigReader& reader, ModelFamily family) {
  if (!reader.Has("target_modules")) return DefaultLoraTargets(family);
  const nlohmann::json& value = reader.json().at("target_modules");
  if (value == "all-linear") return {"*"};
  std::vector<std::string> targets;
  bool valid = value.is_array() && !value.empty();
  for (size_t i = 0; valid && i < value.size(); ++i) {
    valid = value[i].is_string();
    if (valid) targets.push_back(value[i].get<std::string>());
    valid = valid && !targets.back().empty() && !IsGlob(targets.back());
  }
  if (valid) {
    std::sort(targets.begin(), targets.end());  // PEFT writes a set, in any order
    return targets;
  }
  reader.AddProblem("target_modules", "a list of names of modules (a regular expression is not supported)");
  return {};
}

LoraSettings ReadSettings(ConfigReader& reader, ModelFamily family) {
  if (!reader.Has("peft_type") || reader.json().at("peft_type") != "LORA") reader.AddProblem("peft_type", "\"LORA\"");
  reader.CheckOptional("task_type", "CAUSAL_LM");
  reader.CheckOptional("bias", "none");
  // GPT-2's matrices are [in, out]; PEFT corrects a wrong value of this key for them, but warns.
  if (family != ModelFamily::kGpt2 && reader.ReadFlag("fan_in_fan_out", false)) {
    reader.AddProblem("fan_in_fan_out",
                      absl::StrCat("false, because matrices of ", FamilyName(family), " are [out, in]"));
  }
  LoraSettings lora{.rank = reader.ReadSize("r", kPeftRank),
                    .alpha = reader.ReadPositive("lora_alpha", kPeftAlpha),
                    .dropout = reader.ReadProbability("lora_dropout", 0),
                    .targets = ReadTargets(reader, family)};
  if (lora.rank > kRankMax) reader.AddProblem("r", absl::StrCat("at most ", kRankMax));
  // With use_rslora PEFT's factor is alpha / sqrt(rank).
  if (reader.ReadFlag("use_rslora", false)) lora.alpha *= std::sqrt(static_cast<double>(lora.rank));
  CheckInitialisation(reader);
  CheckOtherKeys(reader);
  return lora;
}

// The targets as PEFT understands them: if one is a glob, the whole names of all projections that have adapters.
std::vector<std::string> PeftTargets(const ModelDescription& model) {
  const std::vector<std::string>& targets = model.sizes.lora.targets;
  if (std::none_of(targets.begin(), targets.end(), [](const std::string& target) { return IsGlob(target); })) {
    return targets;
  }
  std::vector<std::string> names;
  for (const ProjectionDescription& projection : model.projections) {
    if (projection.lora_a >= 0) names.push_back(absl::StrCat(model.hugging_face.prefix, projection.name));
  }
  return names;
}

}  // namespace

absl::StatusOr<LoraSettings> ParseAdapterConfig(absl::string_view text, absl::string_view path, ModelFamily family) {
  absl::StatusOr<nlohmann::json> json = ParseConfigObject(text, path);
  if (!json.ok()) return json.status();
  ConfigReader reader(*json);
  LoraSettings lora = ReadSettings(reader, family);
  if (reader.problems().empty()) return lora;
  return absl::InvalidArgumentError(absl::StrCat(
      path, " describes an adapter that cannot be trained here: ", absl::StrJoin(reader.problems(), "; ")));
}

std::string AdapterConfigText(const ModelDescription& model, absl::string_view base) {
  const LoraSettings& lora = model.sizes.lora;
  // PEFT's own files have a whole number.
  nlohmann::ordered_json alpha = lora.alpha;
  if (std::floor(lora.alpha) == lora.alpha) alpha = static_cast<int64_t>(lora.alpha);
  const nlohmann::ordered_json config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", base.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(std::string(base))},
      {"r", lora.rank},
      {"lora_alpha", alpha},
      {"lora_dropout", lora.dropout},
      {"target_modules", PeftTargets(model)},
      {"fan_in_fan_out", !IsLlamaGraph(model.sizes.family)},
      {"bias", "none"},
      {"init_lora_weights", true},
      {"use_rslora", false},
      {"use_dora", false},
      {"modules_to_save", nullptr},
      {"inference_mode", true}};
  return config.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace trainyard
