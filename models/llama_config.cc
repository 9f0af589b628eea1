#include "models/llama_config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

using Json = nlohmann::ordered_json;

// The values that transformers uses for keys that a file leaves out.
constexpr double kTheta = 10000;
constexpr double kRmsEpsilon = 1e-6;

Json RopeJson(const Rope& rope) {
  switch (rope.scaling) {
    case Rope::Scaling::kNone:
      break;
    case Rope::Scaling::kLinear:
      return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case Rope::Scaling::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", rope.factor},
              {"low_freq_factor", rope.low_frequency_factor},
              {"high_freq_factor", rope.high_frequency_factor},
              {"original_max_position_embeddings", rope.original_context}};
  }
  return nullptr;
}

// The scaling, from `rope_scaling` or `rope_parameters`. Old files call the kind "type".
void ReadScaling(ConfigReader& reader, int64_t context, Rope& rope) {
  reader.CheckOptional("partial_rotary_factor", 1.0);
  const char* kind_key = reader.Has("rope_type") ? "rope_type" : "type";
  if (!reader.Has(kind_key) || reader.json().at(kind_key) == "default") return;
  const nlohmann::json& kind = reader.json().at(kind_key);
  if (kind != "linear" && kind != "llama3") {
    reader.AddProblem(kind_key, "\"default\", \"linear\" or \"llama3\"");
    return;
  }
  rope.factor = reader.ReadPositive("factor", 0);
  if (rope.factor < 1) reader.AddProblem("factor", "a number of at least 1");
  rope.scaling = kind == "linear" ? Rope::Scaling::kLinear : Rope::Scaling::kLlama3;
  if (rope.scaling == Rope::Scaling::kLinear) return;
  rope.low_frequency_factor = reader.ReadPositive("low_freq_factor", 0);
  rope.high_frequency_factor = reader.ReadPositive("high_freq_factor", 0);
  rope.original_context = reader.ReadSize("original_max_position_embeddings", context);
  if (!(rope.low_frequency_factor > 0 && rope.low_frequency_factor < rope.high_frequency_factor)) {
    reader.AddProblem("low_freq_factor: expected a number above 0 and below high_freq_factor");
  }
}

// As transformers does, uses the object `rope_scaling` if it is present and not empty, else `rope_parameters`, and
// prefers the rope_theta in that object to the one at the top.
Rope ReadRope(ConfigReader& reader, int64_t context) {
  reader.CheckOptional("partial_rotary_factor", 1.0);
  Rope rope{.theta = reader.ReadPositive("rope_theta", kTheta)};
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!reader.Has(key) || reader.json().at(key) == nlohmann::json::object()) continue;
    if (!reader.json().at(key).is_object()) {
      reader.AddProblem(key, "an object");
      continue;
    }
    ConfigReader inner(reader.json().at(key), absl::StrCat(key, "."));
    rope.theta = inner.ReadPositive("rope_theta", rope.theta);
    ReadScaling(inner, context, rope);
    for (const std::string& problem : inner.problems()) reader.AddProblem(problem);
    break;
  }
  return rope;
}

// The number of the first layer of a Qwen2 model whose attention has the window.
int64_t ReadFirstWindowLayer(ConfigReader& reader) {
  constexpr const char* kKey = "max_window_layers";
  constexpr int64_t kFirst = 28;  // the value that transformers uses if the key is missing
  if (reader.Has(kKey) && reader.json().at(kKey) == 0) return 0;
  return reader.ReadSize(kKey, kFirst);
}

// The sliding window of attention, which all layers of our models have; 0 for none.
int64_t ReadWindow(const ModelSizes& sizes, ConfigReader& reader) {
  constexpr int64_t kWindow = 4096;  // the value that transformers uses if the key is missing
  if (sizes.family == ModelFamily::kLlama) return 0;
  if (sizes.family == ModelFamily::kQwen2) {
    if (!reader.ReadFlag("use_sliding_window", false)) return 0;
    const int64_t first = ReadFirstWindowLayer(reader);
    if (first >= sizes.layers) return 0;
    if (first > 0) reader.AddProblem("max_window_layers", "0, or num_hidden_layers or more, with use_sliding_window");
  }
  const bool given = reader.json().contains("sliding_window");
  return reader.ReadSize("sliding_window", given ? 0 : kWindow);
}

// Files from before grouped-query attention leave the key out. A Llama model then has as many heads of keys and values
// as of queries; the other families have the defaults of transformers.
int64_t ReadKvHeads(ModelFamily family, int64_t heads, ConfigReader& reader) {
  constexpr const char* kKey = "num_key_value_heads";
  if (reader.json().contains(kKey) || family == ModelFamily::kLlama) return reader.ReadSize(kKey, heads);
  return family == ModelFamily::kMistral ? 8 : 32;
}

// Checks the key `layer_types`, a list with the kind of attention of each layer.
void CheckLayerTypes(bool has_window, ConfigReader& reader) {
  if (!reader.Has("layer_types")) return;
  const std::string expected = has_window ? "sliding_attention" : "full_attention";
  const nlohmann::json& types = reader.json().at("layer_types");
  const bool all_equal = types.is_array() && std::all_of(types.begin(), types.end(),
                                                         [&](const nlohmann::json& type) { return type == expected; });
  if (!all_equal) reader.AddProblem("layer_types", absl::StrCat("a list of \"", expected, "\""));
}

AttentionBias ReadAttentionBias(ModelFamily family, ConfigReader& reader) {
  if (family == ModelFamily::kQwen2) return AttentionBias::kQkv;
  if (family == ModelFamily::kMistral) return AttentionBias::kNone;
  return reader.ReadFlag("attention_bias", false) ? AttentionBias::kAll : AttentionBias::kNone;
}

const char* Architecture(ModelFamily family) {
  if (family == ModelFamily::kMistral) return "MistralForCausalLM";
  return family == ModelFamily::kQwen2 ? "Qwen2ForCausalLM" : "LlamaForCausalLM";
}

}  // namespace

Json LlamaConfig(const ModelSizes& sizes, absl::string_view dtype) {
  Json config = {{"architectures", {Architecture(sizes.family)}},
                 {"model_type", std::string(FamilyName(sizes.family))},
                 {"dtype", TorchTypeName(dtype)},
                 {"num_hidden_layers", sizes.layers},
                 {"num_attention_heads", sizes.heads},
                 {"num_key_value_heads", sizes.kv_heads},
                 {"head_dim", sizes.head_width},
                 {"hidden_size", sizes.width},
                 {"intermediate_size", sizes.inner},
                 {"max_position_embeddings", sizes.context},
                 {"vocab_size", sizes.vocabulary},
                 {"hidden_act", "silu"},
                 {"rms_norm_eps", sizes.norm_eps},
                 {"rope_theta", sizes.rope.theta},
                 {"rope_scaling", RopeJson(sizes.rope)},
                 {"attention_dropout", 0.0},
                 {"initializer_range", 0.02},
                 {"tie_word_embeddings", sizes.tied},
                 {"use_cache", true},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", nullptr},
                 {"pad_token_id", nullptr}};
  Json parameters = RopeJson(sizes.rope);
  if (parameters.is_null()) parameters = {{"rope_type", "default"}};
  parameters["rope_theta"] = sizes.rope.theta;
  config["rope_parameters"] = parameters;
  if (sizes.family == ModelFamily::kLlama) {
    config["attention_bias"] = sizes.attention_bias == AttentionBias::kAll;
    config["mlp_bias"] = sizes.mlp_bias;
  } else if (sizes.family == ModelFamily::kMistral) {
    config["sliding_window"] = sizes.window == 0 ? Json(nullptr) : Json(sizes.window);
  } else {
    config["use_sliding_window"] = sizes.window != 0;
    if (sizes.window != 0) {
      config["sliding_window"] = sizes.window;
      config["max_window_layers"] = 0;  // the first layer that has the window
    }
  }
  return config;
}

ModelSizes ReadLlamaConfig(ModelFamily family, ConfigReader& reader) {
  reader.CheckOptional("hidden_act", "silu");
  reader.CheckOptional("attention_dropout", 0.0);
  if (family != ModelFamily::kLlama) reader.CheckOptional("mlp_bias", false);
  if (family == ModelFamily::kMistral) reader.CheckOptional("attention_bias", false);
  ModelSizes sizes{.family = family,
                   .layers = reader.ReadSize("num_hidden_layers"),
                   .heads = reader.ReadSize("num_attention_heads"),
                   .width = reader.ReadSize("hidden_size"),
                   .context = reader.ReadSize("max_position_embeddings"),
                   .vocabulary = reader.ReadSize("vocab_size")};
  sizes.kv_heads = ReadKvHeads(family, sizes.heads, reader);
  sizes.head_width = reader.ReadSize("head_dim", std::max<int64_t>(1, sizes.width / sizes.heads));
  sizes.inner = reader.ReadSize("intermediate_size");
  sizes.norm_eps = reader.ReadPositive("rms_norm_eps", kRmsEpsilon);
  sizes.tied = reader.ReadFlag("tie_word_embeddings", false);
  sizes.attention_bias = ReadAttentionBias(family, reader);
  sizes.mlp_bias = family == ModelFamily::kLlama && reader.ReadFlag("mlp_bias", false);
  sizes.rope = ReadRope(reader, sizes.context);
  sizes.window = ReadWindow(sizes, reader);
  CheckLayerTypes(sizes.window != 0, reader);
  if (reader.problems().empty()) {
    if (const absl::Status status = CheckSizes(sizes); !status.ok()) reader.AddProblem(std::string(status.message()));
  }
  return sizes;
}

}  // namespace trainyard
