// The settings that define one model of a family. Plain values; job files, checkpoints, Hugging Face
// configurations and the engine all use this struct.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/lora.h"

namespace trainyard {

// Llama, Mistral and Qwen2 are one computation with different settings (llama_description.h).
// kMlp is a classifier of numbers, whose sizes have other meanings (mlp_description.h).
enum class ModelFamily { kGpt2, kLlama, kMistral, kQwen2, kMlp };

// The name that job files, messages and `model_type` of config.json use: "gpt2".
absl::string_view FamilyName(ModelFamily family);

bool IsLlamaGraph(ModelFamily family);

// The rotary position embedding (arXiv:2104.09864) of the Llama graph, and how its frequencies are scaled for contexts
// that are longer than those the model was first trained with.
struct Rope {
  enum class Scaling { kNone, kLinear, kLlama3 };
  double theta = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;                 // kLinear divides all frequencies by it, kLlama3 only the low ones
  double low_frequency_factor = 1;   // of kLlama3
  double high_frequency_factor = 4;  // of kLlama3
  int64_t original_context = 0;      // of kLlama3
  bool operator==(const Rope&) const = default;
};

// Which projections of attention have biases.
enum class AttentionBias { kNone, kQkv, kAll };

struct ModelSizes {
  ModelFamily family = ModelFamily::kGpt2;
  int64_t layers = 0;
  int64_t heads = 0;  // GPT-2: must divide width
  int64_t width = 0;
  int64_t context = 0;  // the largest number of positions
  int64_t vocabulary = 256;
  double dropout = 0;  // a probability; GPT-2: after the embedding, in attention, and after both projections

  // The Llama graph only; GPT-2 has the defaults.
  int64_t kv_heads = 0;    // heads of keys and values; must divide heads
  int64_t head_width = 0;  // even; heads x head_width may differ from width
  int64_t inner = 0;       // width inside the perceptron
  double norm_eps = 0;     // of the RMS norms
  bool tied = true;        // the head's matrix is the token embedding
  AttentionBias attention_bias = AttentionBias::kNone;
  bool mlp_bias = false;
  // Mistral and Qwen2 attend to at most this many tokens, so sequences must not be longer. 0: no limit.
  int64_t window = 0;
  Rope rope = {};

  LoraSettings lora = {};

  bool operator==(const ModelSizes&) const = default;
};

// Returns `sizes` of a Llama, Mistral or Qwen2 model with each field that is 0 set to the default of job files, which
// may depend on the other fields. Layers, heads, width, context and vocabulary have no default. REQUIRES: heads >= 1.
ModelSizes CompleteLlamaSizes(ModelSizes sizes);

// The largest number of tokens in a sequence: the context, or the sliding window if that is shorter.
int64_t LongestSequence(const ModelSizes& sizes);

// Fails with InvalidArgument, which lists every problem: a size that is not positive, heads that cannot be divided as
// the family requires, a fraction or factor out of range.
absl::Status CheckSizes(const ModelSizes& sizes);

// "a GPT-2 of 2 layers, width 4, context 8, vocabulary 256", for messages.
std::string SizesText(const ModelSizes& sizes);

}  // namespace trainyard
