// Continues several texts with a model, token by token. Up to `batch` of them are computed together; when one ends, the
// next takes its place. A text depends on its prompt, the seed and the options, and not on the other texts.
//
// A text that is longer than the model's context is continued from its last tokens, whose positions begin at 0 again.
// The model then runs over all of these tokens for each new token.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/model/model.h"
#include "worker/trainer/choose_token.h"

namespace trainyard {

struct GenerateOptions {
  int64_t tokens = 0;  // at most this many for each prompt
  SamplingPolicy policy = {};
  uint64_t seed = 0;
  std::vector<int64_t> ends = {};  // tokens that end a text
  int64_t batch = 1;
};

enum class TextEnd { kEndToken, kLength, kInterrupted };

// Receives the texts as they grow. Texts of one batch grow in turns.
class TextReceiver {
 public:
  virtual ~TextReceiver() = default;
  // `prompt`: the index of the prompt. Possible errors: those of the receiver, which end the generation.
  virtual absl::Status Add(size_t prompt, int64_t token) = 0;
  virtual absl::Status End(size_t prompt, TextEnd end) = 0;
};

// `must_stop` is called between passes; when it returns true, the texts that have begun end with kInterrupted.
// Possible errors: those of ChooseToken and of the receiver. REQUIRES: no prompt is empty; all tokens are in the
// vocabulary; options.tokens and options.batch are at least 1.
absl::Status Generate(Model& model, const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
                      TextReceiver& receiver, const std::function<bool()>& must_stop);

}  // namespace trainyard
