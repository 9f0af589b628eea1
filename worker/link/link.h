// The trainer's side of its daemon: all that the loop knows of the control plane. The loop never waits for it while it
// steps; a daemon that is away (being replaced, restarted) is reconnected to in the background, and what the trainer
// told meanwhile is kept and sent then.
//
//   link->AwaitStart      the spec, and this rank's place
//   link->Put, Get        rendezvous values, while communicators are built
//   link->ReportFact(Ready)     everything stands
//   link->AwaitGo         every rank is ready
//   link->ReportStep ...  as it goes
//   link->ReportFact(Finished), link->Close
//
// Thread-safe. Neither torch nor protobuf here; grpc_link.h has the real one, fake_link.h one for tests.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/key_value_store.h"
#include "worker/link/config.h"

namespace trainyard {

// Facts: each is told once, numbered, and kept until the coordinator has it. Meanings in
// proto/trainyard/v1/agent.proto.
struct RegisteredFact {
  std::string spec_digest;
};
struct ReadyFact {
  uint64_t first_step = 0;
  uint64_t parameters = 0;
};
struct SavedFact {
  uint64_t step = 0;
  std::string path;
  std::string manifest_hash;
  uint64_t size_bytes = 0;
  double seconds = 0;                  // from its beginning to its name
  std::optional<double> stall_s = {};  // of them training stood still for it; none: all
};
struct SaveFailedFact {
  uint64_t step = 0;
  std::string message;
  uint64_t stop_request = 0;  // the stop it was made for, which is off now; 0: none
  bool withdrawn = false;     // nothing failed: a newer complete one took its place before it had a name
  bool will_retry = false;    // it was the last save, and the ranks try it again
};
// A complete partial checkpoint that asks for its name; the answer comes by AwaitGrant. It may be told again.
struct SaveReadyFact {
  uint64_t step = 0;
  std::string path;  // that it will have
  std::string manifest_hash;
  uint64_t size_bytes = 0;
};
struct BrokenFact {
  uint64_t step = 0;
  std::string message;
};
struct FinishedFact {
  uint64_t step = 0;
  bool stopped = false;
  double loss = 0;
  std::string unsaved = {};  // why no checkpoint holds the last step; empty: one does
};
struct RefusedFact {
  std::string message;
  bool checkpoint_missing = false;  // nothing else is wrong with the job
};
struct RestoredFact {
  uint64_t step = 0;
  std::string path;
  std::string manifest_hash;
  std::vector<std::string> passed_over = {};  // why newer ones are not gone on from, a sentence each
  std::vector<KeyChange> changes = {};        // of the job that made it
};
struct ProbeFact {
  double matmul_gflops = 0;
  double all_reduce_latency_s = 0;    // of 8 bytes
  double all_reduce_bytes_per_s = 0;  // of the larger one
};
// What keys of the job that were left to the host came to here.
struct DecidedFact {
  struct Decision {
    std::string key;
    std::string value;
    std::string reason;
  };
  std::vector<Decision> decisions;
};
using TrainerFact = std::variant<RegisteredFact, ReadyFact, SavedFact, SaveFailedFact, BrokenFact, FinishedFact,
                                 RefusedFact, RestoredFact, ProbeFact, DecidedFact, SaveReadyFact>;

// Bytes that this rank holds of one kind; see MemoryUse in proto/trainyard/v1/service.proto.
struct MemoryUse {
  std::string kind;
  uint64_t bytes = 0;
  uint64_t peak_bytes = 0;
  bool operator==(const MemoryUse&) const = default;
};

// One optimizer step of the whole job; see StepReport in proto/trainyard/v1/service.proto.
struct StepRecord {
  uint64_t step = 0;
  double loss = 0;
  uint64_t tokens = 0;
  double step_s = 0;
  double lr = 0;
  double grad_norm = 0;
  double compute_s = 0;
  double exposed_communication_s = 0;
  uint64_t gradient_reductions =
      0;  // operations that this rank's gradients took: buckets, or units, and rounds of them
  double optimizer_s = 0;
  bool skipped = false;
  double loss_scale = 0;               // 0: losses are not scaled
  double save_stall_s = 0;             // that the loop waited for a save since the step before
  std::vector<MemoryUse> memory = {};  // of this rank before its update; empty: as in the step before
};

struct EvalRecord {
  uint64_t step = 0;
  double loss = 0;
  uint64_t tokens = 0;
  double seconds = 0;
};

// Words of RankStatus.phase. Leaving: all is made, and the coordinator's word on the last save is waited for, which
// takes as long as the network does; so it is no phase whose time is learned.
enum class Phase { kStarting, kJoining, kReady, kFirstStep, kTrain, kEvaluate, kSave, kLeaving, kEnded };
const char* PhaseName(Phase phase);

// Since the trainer began.
struct WorkTotals {
  double compute_s = 0;  // forward and backward
  double wait_s = 0;     // for the other ranks
  uint64_t steps = 0;
  uint64_t micro_batches = 0;
};

// The newest request to stop.
struct StopRequest {
  uint64_t number = 0;      // 0: there was none
  bool needs_save = false;  // where the save that comes before it fails, nobody stops
};

// Where this rank stands in one communicator's operations; see CommunicatorReport in proto/trainyard/v1/agent.proto.
struct CommunicatorProgress {
  std::string name;
  uint64_t started = 0;
  uint64_t completed = 0;
  std::string waits_in;
  std::string last_started;
};

class Link : public KeyValueStore {
 public:
  // Registers and waits for the order. Possible errors: DeadlineExceeded when no daemon answered within `limit`;
  // Aborted when this trainer is not wanted (its generation is over, it is unknown, its token is wrong): exit;
  // InvalidArgument when the spec cannot be read.
  virtual absl::StatusOr<StartOrder> AwaitStart(absl::Duration limit) = 0;

  // Returns the fact's number. Never blocks.
  virtual uint64_t ReportFact(const TrainerFact& fact) = 0;
  // Facts up to this number are durable with the coordinator.
  virtual uint64_t acknowledged() const = 0;
  // Waits until `sequence` is acknowledged; false when it was not within `limit`.
  virtual bool AwaitAcknowledged(uint64_t sequence, absl::Duration limit) = 0;

  // Never block; the oldest of more than limits::kTrainerReports are dropped, and counted.
  virtual void ReportStep(const StepRecord& record) = 0;
  virtual void ReportEval(const EvalRecord& record) = 0;
  // This rank enters a phase; in kTrain, a step. How long the one before took is measured here, on a steady clock.
  virtual void ReportProgress(Phase phase, uint64_t last_step) = 0;
  virtual void ReportWork(const WorkTotals& totals) = 0;
  virtual void ReportMemory(const std::vector<MemoryUse>& memory) = 0;
  // `poll` is asked by a thread of the link for every report, also while the loop is inside a collective; it must not
  // call the link.
  virtual void PollCommunicators(std::function<std::vector<CommunicatorProgress>()> poll) = 0;

  // Waits until every rank is ready. Possible errors: Aborted when the generation ended first; Cancelled when
  // `interrupted` became true (asked about every 50 ms).
  virtual absl::Status AwaitGo(const std::function<bool()>& interrupted) = 0;
  virtual StopRequest stop_request() const = 0;

  // Waits up to `limit` for the coordinator's word on this generation's ready checkpoint of `step` with that manifest
  // hash. A word that came stays: it is given again, also after the generation's end. Possible errors:
  // FailedPrecondition it is refused, with the reason; DeadlineExceeded there is no word yet (the coordinator may be
  // away); Aborted the generation ended without one.
  virtual absl::Status AwaitGrant(uint64_t step, absl::string_view manifest_hash, absl::Duration limit) = 0;
  // Saves that were asked for so far in this generation; each greater number acts once. Rank 0's alone counts.
  virtual uint64_t save_requests() const = 0;

  // Called once, from a thread of the link, when the generation is over, with the reason; at once if it is over
  // already.
  virtual void OnAbort(std::function<void(std::string reason)> callback) = 0;
  // OK, or Aborted with the reason.
  virtual absl::Status abort_status() const = 0;

  // Waits up to `limit` until everything told is acknowledged and every report sent, then ends the link.
  virtual void Close(absl::Duration limit) = 0;
};

}  // namespace trainyard
