// The trainer's connection to its daemon: the only part of the control plane that the loop knows. The loop never waits
// for the link while it trains; if the daemon is away (being replaced or restarted), the link reconnects in the
// background, and stores what the trainer reports until it can be sent.
//
//   link->AwaitStart            receives the spec and this rank's position
//   link->Put, Get              exchange of addresses, while communicators are built
//   link->ReportFact(Ready)     this rank is ready to train
//   link->AwaitGo               waits until every rank is ready
//   link->ReportStep ...        while training
//   link->ReportFact(Finished), link->Close
//
// Thread-safe. Uses neither torch nor protobuf. grpc_link.h is the implementation; tests use fake_link.h.
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
#include "common/phase.h"
#include "worker/link/config.h"

namespace trainyard {

// Facts: each is numbered, reported once, and stored until the coordinator has it. Meanings in
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
  double seconds = 0;                  // from the beginning of the save until its checkpoint was complete
  std::optional<double> stall_s = {};  // the part of `seconds` in which training waited; none: all of it
};
struct SaveFailedFact {
  uint64_t step = 0;
  std::string message;
  uint64_t stop_request = 0;  // the stop that this save was made for, which is cancelled; 0: none
  bool withdrawn = false;     // the save did not fail: it was given up for a newer complete checkpoint
  bool will_retry = false;    // it was the last save, and the ranks retry it
  bool is_last = false;       // it was the last save of the job
};
// A complete checkpoint under its partial name that waits for its grant; AwaitGrant returns the answer. May be reported
// again.
struct SaveReadyFact {
  uint64_t step = 0;
  std::string path;  // the final path
  std::string manifest_hash;
  uint64_t size_bytes = 0;
};
struct BrokenFact {
  uint64_t step = 0;
  std::string message;
};
struct FinishedFact {
  uint64_t step = 0;
  bool stopped = false;  // by a request, before the last step
  double loss = 0;
  std::string unsaved = {};      // why the last save of the job has failed permanently; empty: it has not
  std::string ended_early = {};  // why no further step is needed, a sentence; empty: the job made all steps or stopped
};
struct RefusedFact {
  std::string message;
  // The only reason is that this host lacks the checkpoint or the data of a job that has begun.
  bool checkpoint_missing = false;
  uint64_t later_generation = 0;  // TrainerRefused.later_generation (proto/trainyard/v1/agent.proto); 0: none
};
struct RestoredFact {
  uint64_t step = 0;
  std::string path;
  std::string manifest_hash;
  std::vector<std::string> passed_over = {};  // why newer checkpoints were not used, a sentence each
  std::vector<KeyChange> changes = {};        // compared with the job that wrote the checkpoint
};
struct ProbeFact {
  double matmul_gflops = 0;
  double all_reduce_latency_s = 0;    // of 8 bytes
  double all_reduce_bytes_per_s = 0;  // of Probe::all_reduce_bytes (config.h)
};
// The decisions for keys of the job that were left to the host.
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

// Bytes of one kind that this rank holds; see MemoryUse in proto/trainyard/v1/service.proto.
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
  uint64_t gradient_reductions = 0;  // operations that reduced this rank's gradients in this step
  double optimizer_s = 0;
  double model_wait_s = 0;  // mean over the ranks of the time for which they waited for other parts of the model
  bool skipped = false;
  double epoch = 0;                    // epochs of the data used up to and including this step; 0: the data has no end
  double loss_scale = 0;               // 0: losses are not scaled
  double save_stall_s = 0;             // time that the loop waited for saves since the previous step
  std::vector<MemoryUse> memory = {};  // of this rank before its update; empty: as in the previous step
};

struct EvalRecord {
  uint64_t step = 0;
  double loss = 0;
  uint64_t tokens = 0;
  double seconds = 0;
};

// Totals since the trainer started.
struct WorkTotals {
  double compute_s = 0;  // forward and backward
  double wait_s = 0;     // for the other ranks
  uint64_t steps = 0;
  uint64_t micro_batches = 0;
};

// The newest request to stop.
struct StopRequest {
  uint64_t number = 0;      // 0: there was none
  bool needs_save = false;  // if the save before the stop fails, the stop is cancelled
};

// This rank's position in one communicator's operations; see CommunicatorReport in proto/trainyard/v1/agent.proto.
struct CommunicatorProgress {
  std::string name;
  uint64_t started = 0;
  uint64_t completed = 0;
  std::string waits_in;
  std::string last_started;
};

class Link : public KeyValueStore {
 public:
  // Registers and waits for the order. Possible errors: DeadlineExceeded if no order came within `limit`; Aborted if
  // this trainer must exit (its generation is over, the daemon does not know it, or its token is wrong);
  // InvalidArgument if the spec cannot be read.
  virtual absl::StatusOr<StartOrder> AwaitStart(absl::Duration limit) = 0;

  // Returns the fact's number. Never blocks.
  virtual uint64_t ReportFact(const TrainerFact& fact) = 0;
  // Facts up to this number are durable at the coordinator.
  virtual uint64_t acknowledged() const = 0;
  // Waits until `sequence` is acknowledged. Returns false if `limit` has passed or the generation has ended before.
  virtual bool AwaitAcknowledged(uint64_t sequence, absl::Duration limit) = 0;

  // Reports never block. Of more than limits::kTrainerReports steps and evaluations, the oldest are dropped; steps that
  // are dropped before they were sent are counted.
  virtual void ReportStep(const StepRecord& record) = 0;
  virtual void ReportEval(const EvalRecord& record) = 0;
  // This rank enters a phase, or the next step in kTrain. The link measures the duration of the previous phase or step
  // on a steady clock.
  virtual void ReportProgress(Phase phase, uint64_t last_step) = 0;
  virtual void ReportWork(const WorkTotals& totals) = 0;
  virtual void ReportMemory(const std::vector<MemoryUse>& memory) = 0;
  // A thread of the link calls `poll` for every report, also while the loop is inside a collective. `poll` must not
  // call the link.
  virtual void PollCommunicators(std::function<std::vector<CommunicatorProgress>()> poll) = 0;

  // Waits until every rank is ready. Possible errors: Aborted if the generation ended first; Cancelled if `interrupted`
  // returned true (it is called about every 50 ms).
  virtual absl::Status AwaitGo(const std::function<bool()>& interrupted) = 0;
  virtual StopRequest stop_request() const = 0;

  // Waits up to `limit` for the coordinator's answer about this generation's complete checkpoint of `step` with that
  // manifest hash. An answer stays valid: later calls return it again, also after the end of the generation. Possible
  // errors: FailedPrecondition if the grant is refused, with the reason; DeadlineExceeded if there is no answer yet
  // (the coordinator may be away); Aborted if the generation ended without an answer.
  virtual absl::Status AwaitGrant(uint64_t step, absl::string_view manifest_hash, absl::Duration limit) = 0;
  // The number of the newest request to save in this generation; 0: none. Each increase requests a save. Only rank 0
  // uses it.
  virtual uint64_t save_requests() const = 0;

  // Calls `callback` once, from a thread of the link, with the reason, when the generation ends; immediately if it has
  // ended already.
  virtual void OnAbort(std::function<void(std::string reason)> callback) = 0;
  // OK, or Aborted with the reason.
  virtual absl::Status abort_status() const = 0;

  // Waits up to `limit` until every fact is acknowledged and every report is sent, then ends the link.
  virtual void Close(absl::Duration limit) = 0;
};

}  // namespace trainyard
