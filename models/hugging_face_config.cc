#include "models/hugging_face_config.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trainyard {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kEpsilon = 1e-5;

std::string TypeName(absl::string_view dtype) {
  if (dtype == "F64") return "float64";
  if (dtype == "F16") return "float16";
  return dtype == "BF16" ? "bfloat16" : "float32";
}

Json Gpt2Config(const ModelSizes& sizes, absl::string_view dtype) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"dtype", TypeName(dtype)},
          {"n_layer", sizes.layers},
          {"n_head", sizes.heads},
          {"n_embd", sizes.width},
          {"n_positions", sizes.context},
          {"n_inner", nullptr},
          {"vocab_size", sizes.vocabulary},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", kEpsilon},
          {"embd_pdrop", sizes.dropout},
          {"attn_pdrop", sizes.dropout},
          {"resid_pdrop", sizes.dropout},
          {"initializer_range", 0.02},
          {"scale_attn_weights", true},
          {"scale_attn_by_inverse_layer_idx", false},
          {"reorder_and_upcast_attn", false},
          {"tie_word_embeddings", true},
          {"use_cache", true},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"pad_token_id", nullptr}};
}

Json GenerationConfig() {
  return {{"bos_token_id", nullptr}, {"eos_token_id", nullptr}, {"pad_token_id", nullptr},
          {"do_sample", true},       {"temperature", 0.8},      {"max_new_tokens", 300}};
}

// Reads keys of config.json and collects the problems.
class ConfigReader {
 public:
  explicit ConfigReader(const nlohmann::json& json) : json_(json) {}

  int64_t ReadSize(const char* key) {
    auto it = json_.find(key);
    if (it != json_.end() && it->is_number_unsigned() && it->get<uint64_t>() > 0 && it->get<uint64_t>() < 1 << 30) {
      return it->get<int64_t>();
    }
    Problem(key, "a positive number", it);
    return 1;
  }
  double ReadProbability(const char* key) {
    auto it = json_.find(key);
    if (it == json_.end()) return 0.1;  // the library's default
    if (it->is_number() && it->get<double>() >= 0 && it->get<double>() < 1) return it->get<double>();
    Problem(key, "a number from 0 to below 1", it);
    return 0;
  }
  // Checks that an optional key, if it is present, has this value.
  void CheckOptional(const char* key, const nlohmann::json& value) {
    auto it = json_.find(key);
    if (it != json_.end() && !it->is_null() && *it != value) Problem(key, value.dump(), it);
  }
  void AddProblem(std::string problem) { problems_.push_back(std::move(problem)); }
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  void Problem(const char* key, const std::string& expected, nlohmann::json::const_iterator it) {
    const std::string found = it == json_.end() ? "nothing" : it->dump().substr(0, 100);
    problems_.push_back(absl::StrCat(key, ": expected ", expected, ", found ", found));
  }
  const nlohmann::json& json_;
  std::vector<std::string> problems_;
};

ModelSizes ReadGpt2Sizes(ConfigReader& reader) {
  reader.CheckOptional("model_type", "gpt2");
  reader.CheckOptional("activation_function", "gelu_new");
  reader.CheckOptional("layer_norm_epsilon", kEpsilon);
  reader.CheckOptional("scale_attn_weights", true);
  reader.CheckOptional("scale_attn_by_inverse_layer_idx", false);
  reader.CheckOptional("tie_word_embeddings", true);
  reader.CheckOptional("add_cross_attention", false);
  ModelSizes sizes{.layers = reader.ReadSize("n_layer"),
                   .heads = reader.ReadSize("n_head"),
                   .width = reader.ReadSize("n_embd"),
                   .context = reader.ReadSize("n_positions"),
                   .vocabulary = reader.ReadSize("vocab_size"),
                   .dropout = reader.ReadProbability("resid_pdrop")};
  reader.CheckOptional("n_inner", 4 * sizes.width);
  if (sizes.width % sizes.heads != 0) {
    reader.AddProblem(absl::StrCat("n_head ", sizes.heads, " does not divide n_embd ", sizes.width));
  }
  return sizes;
}

}  // namespace

std::string HuggingFaceConfig(const ModelSizes& sizes, absl::string_view dtype) {
  switch (sizes.family) {
    case ModelFamily::kGpt2:
      return Gpt2Config(sizes, dtype).dump(2) + "\n";
  }
  return "";
}

std::string HuggingFaceGenerationConfig() { return GenerationConfig().dump(2) + "\n"; }

absl::StatusOr<ModelSizes> ParseHuggingFaceConfig(absl::string_view text, absl::string_view path) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON object"));
  ConfigReader reader(json);
  const ModelSizes sizes = ReadGpt2Sizes(reader);
  const std::vector<std::string>& problems = reader.problems();
  if (problems.empty()) return sizes;
  return absl::InvalidArgumentError(
      absl::StrCat(path, " describes a model that cannot be trained here: ", absl::StrJoin(problems, "; ")));
}

}  // namespace trainyard
