#include "worker/saving/save_head.h"

#include "absl/strings/str_cat.h"

namespace trainyard {

Manifest MakeSaveHead(const StartOrder& order, const ParallelState& state, uint64_t step, const RunPosition& position) {
  Manifest manifest;
  manifest.job_id = order.job_id;
  manifest.job_name = order.config.job_name;
  manifest.step = step;
  manifest.generation = order.generation;
  manifest.spec = order.spec_bytes;
  manifest.spec_digest = order.spec_digest;
  manifest.seed = order.config.seed;
  manifest.optimizer_updates = state.num_updates();
  if (order.config.precision.param == "fp16" || order.config.precision.reduce == "fp16") {
    const LossScale scale = state.loss_scale();
    manifest.loss_scale = {
        .scale = scale.scale, .good_steps = scale.good_steps, .hysteresis_left = scale.hysteresis_left};
  }
  manifest.data.consumed_samples = position.consumed_samples;
  manifest.data.epoch = position.consumed_samples / position.samples_per_epoch;
  manifest.data.samples = position.samples;
  manifest.evaluation = position.evaluation;
  manifest.strategy = order.config.parallel.strategy;
  manifest.world_size = static_cast<uint64_t>(order.world_size);
  manifest.bucket_order = state.BucketOrder();
  return manifest;
}

std::string DescribeData(const Corpus& corpus, const std::string& restored_content_hash, ManifestData& data) {
  const CorpusFingerprint& fingerprint = corpus.Fingerprint();
  data.num_files = fingerprint.num_files;
  data.num_bytes = fingerprint.num_bytes;
  data.files_hash = fingerprint.files_hash;
  data.content_hash = fingerprint.content_hash;
  const std::vector<Corpus::File>& files = corpus.files();
  for (size_t i = 0; files.size() <= kDataFilesListed && i < files.size(); ++i) {
    data.list.push_back({.path = files[i].path,
                         .bytes = static_cast<uint64_t>(files[i].num_bytes),
                         .hash = fingerprint.file_hashes[i]});
  }
  if (restored_content_hash.empty() || restored_content_hash == fingerprint.content_hash) return "";
  return absl::StrCat("warning: the data differs from that of the checkpoint this run resumed from (content hash ",
                      fingerprint.content_hash, ", was ", restored_content_hash,
                      "); the losses differ from those of an uninterrupted run");
}

}  // namespace trainyard
