// Writes a checkpoint as a folder that the Python library transformers opens: config.json, generation_config.json
// (unless the model came from a folder without it), and model.safetensors or, above a size, several files with
// model.safetensors.index.json. Stateless.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "checkpoint/file_system.h"
#include "checkpoint/reader.h"
#include "models/model_sizes.h"

namespace trainyard {

struct ExportOptions {
  // The largest number of bytes of tensors in one file. A tensor that is larger has a file of its own.
  uint64_t max_shard_bytes = 5'000'000'000;
  std::string dtype;          // of the exported weights, as in safetensors; empty: as in the checkpoint
  std::string source_config;  // the text of the config.json that gave the sizes; empty: none
  std::string source_folder;  // from which generation_config.json is copied; empty: none
  std::string tokenizer;      // its folder or its file, which is copied with the settings next to it; empty: none
  std::string chat_template;  // replaces that of the tokenizer; empty: none
};

// Writes the parameters of `checkpoint`, with adapters merged into their matrices, into a new folder `out`, with a
// tokenizer if the tokens are bytes or the options name a tokenizer. The folder gets its name `out` only when it is
// complete; if another process makes a folder `out` meanwhile, that folder is renamed to <out>.partial. Fails with
// AlreadyExists if something is at `out`, with FailedPrecondition if the checkpoint is of another model, with
// InvalidArgument if an option is not valid or `dtype` cannot store a weight, and with the errors of reading the
// checkpoint and of the file system.
absl::Status ExportModel(const Checkpoint& checkpoint, const ModelSizes& sizes, const std::string& out,
                         FileSystem& file_system, const ExportOptions& options = {});

// Writes the adapters of `checkpoint` alone into a new folder `out`, in the form of PEFT (adapter_files.h). `base`: the
// folder of the model without adapters; empty: unknown. Fails with the errors of ExportModel, and with
// FailedPrecondition if the model has no adapters.
absl::Status ExportAdapter(const Checkpoint& checkpoint, const ModelSizes& sizes, const std::string& base,
                           const std::string& out, FileSystem& file_system, const std::string& dtype = "");

}  // namespace trainyard
