// A model that generates text, with its tokenizer, from a checkpoint or from a folder that transformers wrote. Used by
// one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tokenizers/tokenizer.h"
#include "worker/data/text_encoder.h"
#include "worker/model/model.h"

namespace trainyard {

// Reads the values of a parameter into its memory.
using ReadParameter = std::function<absl::Status(const NamedTensor& parameter)>;

struct TextModel {
  std::string path = {};              // of the checkpoint or folder
  std::optional<uint64_t> step = {};  // of a checkpoint
  std::unique_ptr<Model> model = {};  // its parameters have no memory until LoadWeights
  ReadParameter read = {};            // null after LoadWeights
  std::unique_ptr<Tokenizer> tokenizer = {};
  std::unique_ptr<TextEncoder> encoder = {};
  std::vector<int64_t> ends = {};  // tokens that end a text
  bool hides_ends = false;         // they are not shown, although the tokenizer does not know that they are special
};

// `source`: a checkpoint; a run folder, which means its newest good checkpoint; or a folder with config.json.
// `tokenizer`: a file or folder; "bytes"; empty: that of the model. Possible errors: NotFound if there is no model;
// DataLoss if no checkpoint can be trusted; InvalidArgument; those of OpenTokenizer.
absl::StatusOr<TextModel> OpenTextModel(const std::string& source, const std::string& tokenizer);

// Allocates the parameters and reads them. Calls `progress` with the number of bytes read so far and the total; if it
// returns false, the result is Cancelled. Possible errors: also those of reading, DataLoss among them.
absl::Status LoadWeights(TextModel& text_model, const std::function<bool(int64_t done, int64_t total)>& progress);

// The tokens of a prompt, which begins a document. Fails with InvalidArgument if there are none, or some that the
// model does not know.
absl::StatusOr<std::vector<int64_t>> TokensOfPrompt(const std::string& prompt, const TextModel& text_model);

}  // namespace trainyard
