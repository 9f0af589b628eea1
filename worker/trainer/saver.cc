#include "worker/trainer/saver.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "worker/checkpoint/catalog.h"
#include "worker/trainer/state.h"

namespace trainyard {

absl::StatusOr<bool> Saver::Save(uint64_t step, uint64_t consumed_samples, uint64_t samples_per_epoch,
                                 uint64_t stop_request) {
  absl::Time began = absl::Now();
  Manifest manifest = MakeManifest(step, consumed_samples, samples_per_epoch);
  absl::StatusOr<SavedCheckpoint> saved;
  RETURN_IF_ERROR(SaveState(
      parts_.strategy,
      [&](const std::vector<TensorHeader>& tensors, TensorStream stream) {
        return WriteCheckpoint(parts_.order.config.checkpoint_dir, std::move(manifest), tensors, stream,
                               parts_.file_system, parts_.check_fence);
      },
      saved))
      << "while saving step " << step;
  return Tell(step, saved, absl::Now() - began, stop_request);
}

bool Saver::Tell(uint64_t step, const absl::StatusOr<SavedCheckpoint>& saved, absl::Duration took,
                 uint64_t stop_request) {
  const double seconds = absl::ToDoubleSeconds(took);
  if (absl::IsAborted(saved.status())) return false;
  if (!saved.ok()) {
    parts_.log << "save of step " << step << " failed, training goes on: " << saved.status().message() << std::endl;
    parts_.link.Tell(
        SaveFailedFact{.step = step, .message = std::string(saved.status().message()), .stop_request = stop_request});
    return false;
  }
  parts_.log << absl::StrFormat("saved step %d in %.3f s: %s (%.1f MB)", step, seconds, saved->path,
                                static_cast<double>(saved->size_bytes) / 1e6)
             << std::endl;
  uint64_t fact = parts_.link.Tell(SavedFact{.step = step,
                                             .path = saved->path,
                                             .manifest_hash = saved->manifest_hash,
                                             .size_bytes = saved->size_bytes,
                                             .seconds = seconds});
  unconfirmed_.push_back({.fact = fact, .step = step});
  return true;
}

Manifest Saver::MakeManifest(uint64_t step, uint64_t consumed_samples, uint64_t samples_per_epoch) {
  if (!fingerprint_.has_value()) {
    fingerprint_ = parts_.corpus.Fingerprint();
    CheckContent(*fingerprint_);
  }
  const StartOrder& order = parts_.order;
  Manifest manifest;
  manifest.job_id = order.job_id;
  manifest.job_name = order.config.job_name;
  manifest.step = step;
  manifest.generation = order.generation;
  manifest.spec = order.spec_bytes;
  manifest.spec_digest = order.spec_digest;
  manifest.seed = order.config.seed;
  manifest.optimizer_updates = parts_.strategy.num_updates();
  if (order.config.precision.param == "fp16" || order.config.precision.reduce == "fp16") {
    const LossScale scale = parts_.strategy.loss_scale();
    manifest.loss_scale = {
        .scale = scale.scale, .good_steps = scale.good_steps, .hysteresis_left = scale.hysteresis_left};
  }
  manifest.data = {.consumed_samples = consumed_samples,
                   .epoch = consumed_samples / samples_per_epoch,
                   .num_files = fingerprint_->num_files,
                   .num_bytes = fingerprint_->num_bytes,
                   .files_hash = fingerprint_->files_hash,
                   .content_hash = fingerprint_->content_hash};
  const std::vector<Corpus::File>& files = parts_.corpus.files();
  for (size_t i = 0; files.size() <= kDataFilesListed && i < files.size(); ++i) {
    manifest.data.list.push_back({.path = files[i].path,
                                  .bytes = static_cast<uint64_t>(files[i].num_bytes),
                                  .hash = fingerprint_->file_hashes[i]});
  }
  manifest.strategy = order.config.parallel.strategy;
  manifest.world_size = static_cast<uint64_t>(order.world_size);
  manifest.bucket_order = parts_.strategy.BucketOrder();
  return manifest;
}

// Reading all data takes long where there is much of it, so a job that was started again by itself hears only here that
// files have changed which kept their sizes.
void Saver::CheckContent(const CorpusFingerprint& fingerprint) {
  if (parts_.restored_content_hash.empty() || parts_.restored_content_hash == fingerprint.content_hash) return;
  parts_.log << "warning: the data is not that of the checkpoint this run went on from (content hash "
             << fingerprint.content_hash << ", was " << parts_.restored_content_hash
             << "); the losses are not those of an uninterrupted run" << std::endl;
}

void Saver::PruneConfirmed() {
  if (unconfirmed_.empty()) return;
  const uint64_t acknowledged = parts_.link.acknowledged();
  std::optional<uint64_t> confirmed;
  while (!unconfirmed_.empty() && unconfirmed_.front().fact <= acknowledged) {
    confirmed = unconfirmed_.front().step;
    unconfirmed_.pop_front();
  }
  if (!confirmed.has_value() || !parts_.check_fence().ok()) return;
  const TrainConfig& config = parts_.order.config;
  absl::StatusOr<std::vector<uint64_t>> removed = PruneCheckpoints(
      config.checkpoint_dir, *confirmed, {.keep = config.checkpoint_keep, .keep_every = config.checkpoint_keep_every},
      {*confirmed}, parts_.file_system);
  if (!removed.ok()) {
    parts_.log << "old checkpoints could not be removed: " << removed.status().message() << std::endl;
  }
}

void Saver::PruneAtEnd(absl::Duration limit) {
  if (unconfirmed_.empty()) return;
  parts_.link.AwaitAcknowledged(unconfirmed_.back().fact, limit);
  PruneConfirmed();
}

}  // namespace trainyard
