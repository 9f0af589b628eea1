// The settings that define one model of a family. Plain values; job files, checkpoints, Hugging Face
// configurations and the engine all use this struct.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace trainyard {

enum class ModelFamily { kGpt2 };

// The name that job files and messages use: "gpt2".
absl::string_view FamilyName(ModelFamily family);

struct ModelSizes {
  ModelFamily family = ModelFamily::kGpt2;
  int64_t layers = 0;
  int64_t heads = 0;  // must divide width
  int64_t width = 0;
  int64_t context = 0;
  int64_t vocabulary = 256;
  double dropout = 0;  // a probability: after the embedding, in attention, and after both projections
  bool operator==(const ModelSizes&) const = default;
};

// Fails with InvalidArgument if a size is not positive, heads does not divide width, or dropout is not in [0, 1).
absl::Status CheckSizes(const ModelSizes& sizes);

// "a GPT-2 of 2 layers, width 4, context 8, vocabulary 256", for messages.
std::string SizesText(const ModelSizes& sizes);

}  // namespace trainyard
