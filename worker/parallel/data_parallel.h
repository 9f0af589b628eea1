// Data parallelism: every rank trains on samples of its own, and all of them make the update that one process with all
// the samples would make. This class stands between the model, whose parameters it moves into flat groups, and the
// communicators. Which strategy it is follows from sharding.h alone.
//
// The life of a step; `rounds` is the same on every rank, and a rank that has fewer micro-batches fills up with Shadow:
//
//   strategy.BeginStep(tokens)
//   for each round:
//     loss = strategy.Forward([&] { return model.LossSum(..., strategy, ...); })
//     strategy.Backward(loss, last)      gradients are added up; with `last` they are reduced while backward goes on
//   or, without a micro-batch:
//     strategy.Shadow(/*with_backward=*/true, last)
//   strategy.FinishBackward()            waits for what is still on its way
//   strategy.Step({...})                 divides once by the step's tokens, clips, updates; a gradient that is not
//                                        finite, of any rank, updates nothing on all
//
// Evaluation: Forward under NoGradMode, or Shadow(/*with_backward=*/false, false), in as many rounds on every rank.
//
// After the first error every call answers with it: the generation is over.
//
// Threads: one, that of the training loop (backward runs on it too, on a CPU). Does not own model or communicators;
// they must outlive it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/defaults.h"
#include "worker/diagnostics/event_log.h"
#include "worker/model/model.h"
#include "worker/numerics/adamw.h"
#include "worker/numerics/loss_scaler.h"
#include "worker/numerics/precision.h"
#include "worker/parallel/mesh_communicators.h"
#include "worker/parallel/offload.h"
#include "worker/parallel/recompute.h"
#include "worker/parallel/sharding.h"

namespace trainyard {

class Ledger;

struct DataParallelOptions {
  Strategy strategy = Strategy::kDdp;
  // None: all of the model's type. Otherwise the model comes in the type of the masters, and computes in `param` from
  // then on.
  std::optional<Precision> precision = {};
  LossScaleConfig loss_scale = {};  // where precision asks for one
  AdamWConfig optimizer = {};
  double clip_norm = 1.0;                               // 0: no clipping
  int64_t bucket_elements = defaults::kBucketElements;  // a bucket is closed once it holds so many; 25 MiB of fp32
  bool overlap = true;                    // communicate during computation; the numbers are the same either way
  bool reduce_scatter = true;             // zero1: false reduces by all-reduce, which makes its numbers those of ddp
  bool reduce_every_micro_batch = false;  // sharded gradients: reduce each, so that they are never held whole
  bool reshard_after_forward = true;      // sharded parameters: gather them again for backward
  int64_t prefetch_elements = -1;         // as in pass_plan.h
  int64_t reuse_elements = 0;
  int64_t max_live_elements = defaults::kMaxLiveElements;
  int64_t persist_elements = 0;  // sharded parameters: smaller ones stay whole on every rank
  int64_t gather_bucket_elements = defaults::kBucketElements;  // of updated parameters, gathered at once after a step
  bool all_gather = true;  // false: each owner broadcasts its part of the updated parameters
  Recompute recompute = {};
  EventLog* events = nullptr;  // not owned; null: nobody asks what was done when
  int64_t optimizer_tile_elements = defaults::kOptimizerTileElements;  // updated at once
  Offload offload = {};
  Ledger* ledger = nullptr;                 // where memory is accounted for, if anywhere; not owned
  Clock* clock = &Clock::GetSteadyClock();  // of exposed_comm_s; not owned
};

struct StepInput {
  double lr = 0;
  uint64_t num_tokens = 0;  // of the step, all ranks together: the divisor
};

struct StepOutput {
  double gradient_norm = 0;     // of the mean gradient, before clipping
  double exposed_comm_s = 0;    // time this rank waited for communication in this step
  uint64_t num_reductions = 0;  // operations that reduced its gradients
  double loss_scale = 1;        // of this step
  bool skipped = false;         // the gradient was not finite: nothing was updated, on any rank
};

// What a tensor of the state is, in a checkpoint.
inline constexpr char kParameterRole[] = "parameter";
inline constexpr char kFirstMomentRole[] = "exp_avg";
inline constexpr char kSecondMomentRole[] = "exp_avg_sq";

struct StateEntry {
  std::string role;
  std::string name;  // of the parameter
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape;
};

struct NamedHash {
  std::string name;
  std::string hash;  // xxh3-128, hex
  bool operator==(const NamedHash&) const = default;
};

struct ParameterDifference {
  std::string name;        // of the first parameter that is not the same on all ranks
  std::vector<int> ranks;  // data ranks whose values differ from those of most
};

// `tensor` is whole, dense and row-major, and valid during the call.
using StateVisitor = absl::FunctionRef<absl::Status(absl::string_view role, const NamedTensor& tensor)>;
// Fills `out`, flat and dense, with elements [first, first + count) of a whole tensor; count > 0.
using RangeSource = absl::FunctionRef<absl::Status(absl::string_view role, absl::string_view name, int64_t first,
                                                   int64_t count, const at::Tensor& out)>;

// `values`, flat and dense, are elements [first, first + values.numel()) of a whole tensor.
using RangeVisitor = absl::FunctionRef<absl::Status(absl::string_view role, absl::string_view name, int64_t first,
                                                    const at::Tensor& values)>;

class DataParallel : public UnitHooks {
 public:
  // Of a step, before its first round; needed where losses are scaled. `num_tokens`: as in StepInput, or where that is
  // not known yet, any number of its size that is the same on every rank.
  virtual void BeginStep(uint64_t num_tokens) = 0;

  // Frames a pass; `loss_sum` runs the model with this object as its hooks. Under grad mode Backward must follow, or
  // the pass counts for nothing. Possible errors: those of a Collective; FailedPrecondition when the model's units do
  // not run in the order of units().
  virtual absl::StatusOr<at::Tensor> Forward(absl::FunctionRef<at::Tensor()> loss_sum) = 0;
  // Gradients are added to those of earlier rounds. `last`: no other round follows in this step, on any rank.
  virtual absl::Status Backward(const at::Tensor& loss, bool last) = 0;
  // A round of which this rank computes nothing: it takes part in the collectives, with gradients of zero.
  virtual absl::Status Shadow(bool with_backward, bool last) = 0;

  // This rank's part of the step is of no use (its loss is not finite): every rank will skip the update of this very
  // step. REQUIRES: called before the Backward or Shadow of the step's last round.
  virtual void RejectStep() = 0;
  virtual absl::Status FinishBackward() = 0;
  // Collective. REQUIRES: FinishBackward has returned OK.
  virtual absl::StatusOr<StepOutput> Step(const StepInput& input) = 0;

  // All tensors of the state, in the order in which VisitState shows them: by role, then as they lie in the groups.
  virtual std::vector<StateEntry> StateEntries() const = 0;
  // Collective: every rank calls it. Shows each tensor of the state to `visit`, on data rank 0 only (the others
  // only take part), one group in memory at a time. An error of `visit` is returned once all collectives are made, and
  // no further tensor is shown.
  virtual absl::Status VisitState(StateVisitor visit) = 0;
  // The same of the parameters alone.
  virtual absl::Status VisitParameters(StateVisitor visit) = 0;
  // Local, no collective: shows the ranges of the state that this rank is to write. Over all ranks every element of
  // every tensor is shown once; what several ranks hold alike is divided among them. The values are views of the state:
  // any thread may read them until the next Step or LoadState. An error of `visit` ends it and is returned.
  virtual absl::Status VisitLocalState(RangeVisitor visit) = 0;
  // Local, no collective: ranges that this rank holds and another is to write, each shown by one rank: so whoever
  // compares finds out whether ranks that should hold the same do. None where nothing is held twice.
  virtual absl::Status VisitWitnessedState(RangeVisitor visit) = 0;
  // Local: fills the whole state; asks for the ranges this rank holds. Possible errors: those of `source`, after which
  // the state is of no use.
  virtual absl::Status LoadState(RangeSource source) = 0;
  virtual uint64_t num_updates() const = 0;
  virtual void set_num_updates(uint64_t num_updates) = 0;
  // For checkpoints; changes with every step where losses are scaled.
  virtual LossScale loss_scale() const = 0;
  virtual void set_loss_scale(const LossScale& scale) = 0;

  // Collective: the hash of each whole parameter, in the model's order, on every rank.
  virtual absl::StatusOr<std::vector<NamedHash>> HashParameters() = 0;
  // Collective: whether all ranks hold the same parameters, as updated and as computed with, by their hashes; the same
  // answer everywhere.
  virtual absl::StatusOr<std::optional<ParameterDifference>> CompareParameters() = 0;

  // Names of the parameters of each group, in the order they are reduced: buckets, or units.
  virtual std::vector<std::vector<std::string>> BucketOrder() const = 0;
};

// Called by Parallelize, which checks the arguments.
absl::StatusOr<std::unique_ptr<DataParallel>> NewDataParallel(Model& model, const MeshCommunicators& communicators,
                                                              const DataParallelOptions& options);

}  // namespace trainyard
