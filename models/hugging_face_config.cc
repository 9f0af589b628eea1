#include "models/hugging_face_config.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/config_reader.h"
#include "models/gpt2_config.h"
#include "models/llama_config.h"

namespace trainyard {
namespace {

constexpr ModelFamily kFamilies[] = {ModelFamily::kGpt2, ModelFamily::kLlama, ModelFamily::kMistral,
                                     ModelFamily::kQwen2};

nlohmann::ordered_json GenerationConfig() {
  return {{"bos_token_id", nullptr}, {"eos_token_id", nullptr}, {"pad_token_id", nullptr},
          {"do_sample", true},       {"temperature", 0.8},      {"max_new_tokens", 300}};
}

ModelSizes ReadSizes(ConfigReader& reader) {
  reader.CheckOptional("quantization_config", nullptr);
  std::vector<std::string> names;
  for (ModelFamily family : kFamilies) {
    names.push_back(absl::StrCat("\"", FamilyName(family), "\""));
    if (!reader.Has("model_type") || reader.json().at("model_type") != std::string(FamilyName(family))) continue;
    return family == ModelFamily::kGpt2 ? ReadGpt2Config(reader) : ReadLlamaConfig(family, reader);
  }
  reader.AddProblem("model_type", absl::StrCat("one of ", absl::StrJoin(names, ", ")));
  return {};
}

}  // namespace

std::string HuggingFaceConfig(const ModelSizes& sizes, absl::string_view dtype) {
  return (IsLlamaGraph(sizes.family) ? LlamaConfig(sizes, dtype) : Gpt2Config(sizes, dtype)).dump(2) + "\n";
}

std::string HuggingFaceGenerationConfig() { return GenerationConfig().dump(2) + "\n"; }

absl::StatusOr<ModelSizes> ParseHuggingFaceConfig(absl::string_view text, absl::string_view path) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON object"));
  ConfigReader reader(json);
  const ModelSizes sizes = ReadSizes(reader);
  const std::vector<std::string>& problems = reader.problems();
  if (problems.empty()) return sizes;
  return absl::InvalidArgumentError(
      absl::StrCat(path, " describes a model that cannot be trained here: ", absl::StrJoin(problems, "; ")));
}

}  // namespace trainyard
