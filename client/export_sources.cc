#include "client/export_sources.h"

#include "absl/status/statusor.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/manifest_file.h"

namespace trainyard::client {

std::string BaseOfAdapters(v1::Model model) {
  constexpr int kJobsMax = 100;  // the checkpoints of two jobs may name each other
  std::string weights;
  for (int job = 0; job < kJobsMax; ++job) {
    weights = model.has_init_from() ? model.init_from() : model.path();
    if (weights.empty()) break;
    const absl::StatusOr<std::string> text = ReadManifestText(weights);
    if (!text.ok()) break;  // not a checkpoint
    const absl::StatusOr<Manifest> manifest = ParseManifest(*text);
    if (!manifest.ok()) break;
    v1::JobSpec spec;
    if (!HasAdapters(*manifest) || !spec.ParseFromString(manifest->spec)) break;
    model = spec.train().model();
  }
  return weights;
}

std::string TokenizerToExport(const v1::Train& train) {
  const v1::Data& data = train.data();
  if (data.has_tokenizer_path()) return data.tokenizer_path();
  // A resolved job names the path of every tokenizer that it reads text with, and `tokenizer` otherwise. Data that
  // consist of tokens, and imported checkpoints, name no tokenizer; their tokens are those of the model's folder.
  const bool reads_bytes = data.has_tokenizer() && !data.fields().has_input_ids();
  return reads_bytes ? "" : train.model().path();
}

}  // namespace trainyard::client
