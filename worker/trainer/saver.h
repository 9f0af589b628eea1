// Saves checkpoints on rank 0, to which the other ranks hand their parts: writes them, tells the coordinator, and
// removes old ones once it has confirmed a newer one. A save that fails is told and forgotten; training goes on.
// Belongs to the loop's thread; owns nothing it is given.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <ostream>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/writer.h"
#include "worker/data/corpus.h"
#include "worker/parallel/data_parallel.h"
#include "worker/trainer/config.h"
#include "worker/trainer/link.h"

namespace trainyard {

class Saver {
 public:
  struct Parts {
    const StartOrder& order;
    const Corpus& corpus;
    DataParallel& strategy;
    Link& link;
    FileSystem& file_system;
    std::ostream& log;
    // Of the checkpoint that was restored; empty when the run began anew.
    std::string restored_content_hash;
    // OK while the run folder is this generation's; see [Note: fence] in run_folder.h.
    std::function<absl::Status()> check_fence;
  };
  explicit Saver(Parts parts) : parts_(std::move(parts)) {}

  // Collective: writes the state as it is after `step`, and returns whether it is on disk; the other ranks call
  // JoinSave. `stop_request` is of the stop that is off where it is not; 0: there is none. Where the fence has fallen
  // nothing comes of it, and the loop finds out by looking itself. Possible errors: those of a Collective.
  absl::StatusOr<bool> Save(uint64_t step, uint64_t consumed_samples, uint64_t samples_per_epoch,
                            uint64_t stop_request);

  // Removes what is beyond `keep`, as far as the coordinator has confirmed newer ones. Cheap when there is nothing new.
  void PruneConfirmed();
  // The same, but waits up to `limit` for the last save to be confirmed.
  void PruneAtEnd(absl::Duration limit);

 private:
  struct Unconfirmed {
    uint64_t fact = 0;
    uint64_t step = 0;
  };
  // Whether it is on disk.
  bool Tell(uint64_t step, const absl::StatusOr<SavedCheckpoint>& saved, absl::Duration took, uint64_t stop_request);
  Manifest MakeManifest(uint64_t step, uint64_t consumed_samples, uint64_t samples_per_epoch);
  void CheckContent(const CorpusFingerprint& fingerprint);

  Parts parts_;
  std::optional<CorpusFingerprint> fingerprint_;  // made at the first save
  std::deque<Unconfirmed> unconfirmed_;
};

}  // namespace trainyard
