#include "models/gpt2_config.h"

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

constexpr double kEpsilon = 1e-5;

}  // namespace

nlohmann::ordered_json Gpt2Config(const ModelSizes& sizes, absl::string_view dtype) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"dtype", TorchTypeName(dtype)},
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

ModelSizes ReadGpt2Config(ConfigReader& reader) {
  constexpr double kLibraryDropout = 0.1;  // the value that transformers uses if a key is missing
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
                   .dropout = reader.ReadProbability("resid_pdrop", kLibraryDropout)};
  for (const char* key : {"embd_pdrop", "attn_pdrop"}) {
    if (reader.ReadProbability(key, kLibraryDropout) != sizes.dropout) {
      reader.AddProblem(key, absl::StrCat(sizes.dropout, ", the value of resid_pdrop"));
    }
  }
  reader.CheckOptional("n_inner", 4 * sizes.width);
  if (sizes.width % sizes.heads != 0) {
    reader.AddProblem(absl::StrCat("n_head ", sizes.heads, " does not divide n_embd ", sizes.width));
  }
  return sizes;
}

}  // namespace trainyard
