// To and from the folder form in which GPT-2 models are published: config.json and model.safetensors, as the Python
// library transformers (GPT2LMHeadModel) writes and opens them. Names and layouts of the weights are ours already
// (worker/model/gpt2.h), but for the prefix "transformer."; nothing is transposed. Keeps no state.
//
// [Note: what of GPT-2 is ours] GELU in its tanh form (gelu_new), an inner width of 4 x width, layer norms with epsilon
// 1e-5, attention scaled by the head's size alone, the head tied to the token embedding. A folder that says otherwise
// is another model and is refused, with everything that differs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/file_system.h"
#include "checkpoint/import_writer.h"
#include "checkpoint/reader.h"

namespace trainyard {

struct Gpt2Sizes {
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t width = 0;
  int64_t context = 0;
  int64_t vocabulary = 0;
  double dropout = 0;
};

// The model's parameters by our names, with their shapes, in the order in which they are written.
std::vector<std::pair<std::string, std::vector<int64_t>>> Gpt2Parameters(const Gpt2Sizes& sizes);

// Writes the parameters of `checkpoint` into a new folder `out`, with the tokenizer where a token is a byte. Nothing is
// at `out` until all is there. Possible errors: AlreadyExists: something is at `out`; FailedPrecondition: the
// checkpoint holds another model; those of reading it and of the file system.
absl::Status ExportGpt2(const Checkpoint& checkpoint, const Gpt2Sizes& sizes, const std::string& out,
                        FileSystem& file_system);

// Reads config.json of such a folder. Possible errors: NotFound; InvalidArgument: it is no GPT-2 that we can train,
// with every reason.
absl::StatusOr<Gpt2Sizes> ReadGpt2Config(const std::string& folder);

// Writes the weights of `folder` as a checkpoint of step 0 below `run_folder`, with empty moments; 16-bit weights
// become fp32, which holds them exactly. `manifest` names job and spec. Possible errors: InvalidArgument: the weights
// do not fit `sizes`, with every missing and unexpected name and every shape; AlreadyExists: the run folder has
// checkpoints; those of the files.
absl::StatusOr<SavedCheckpoint> ImportGpt2(const std::string& folder, const Gpt2Sizes& sizes,
                                           const std::string& run_folder, Manifest manifest, FileSystem& file_system);

}  // namespace trainyard
