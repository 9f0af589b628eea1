// Data parallelism: every rank trains on samples of its own, and all of them make the update that one process with all
// the samples would make. This class stands between the model, whose parameters it moves into flat buffers, and the
// communicator. Today there is one strategy, DDP: parameters, gradients and optimizer state are whole on every rank.
//
// The life of a step, with the five verbs in capitals:
//
//   for each micro-batch dealt to this rank:
//     loss = model.LossSum(..., strategy, ...)    BEFOREUNIT, AFTERUNIT around each unit
//     strategy.Backward(loss, last)               ONGRADREADY for each parameter; with `last`, a bucket whose gradients
//                                                 are all there is launched: all-reduce (SUM) while backward goes on
//   strategy.FinishBackward()                     launches what is left, waits for all
//   strategy.Step({...})                          divides once by the step's tokens, clips, updates, zeroes gradients;
//                                                 a gradient that is not finite, of any rank, updates nothing on all
//
// [Note: bucket order] Buckets are made once, of the parameters in reverse order (the order in which backward is done
// with them, but for the tied embedding, which is last either way), and are launched in that one order on every rank: a
// bucket that is ready early waits for those before it. The order is the same for every run of a model with the same
// bucket size, and a checkpoint keeps it, so that a resumed run can tell.
//
// Threads: one, that of the training loop (backward runs on it too, on a CPU). Does not own model or communicator; they
// must outlive it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"
#include "worker/model/model.h"
#include "worker/numerics/adamw.h"

namespace trainyard {

struct DataParallelOptions {
  AdamWConfig optimizer = {};
  double clip_norm = 1.0;             // 0: no clipping
  int64_t bucket_elements = 6553600;  // a bucket is closed once it holds so many; 25 MiB of fp32
  bool overlap = true;                // launch buckets during backward; the numbers are the same either way
};

struct StepInput {
  double lr = 0;
  uint64_t num_tokens = 0;  // of the step, all ranks together: the divisor
};

struct StepOutput {
  double gradient_norm = 0;   // of the mean gradient, before clipping
  double exposed_comm_s = 0;  // time this rank waited for reductions in this step
  bool skipped = false;       // the gradient was not finite: nothing was updated, on any rank
};

class DataParallel : public UnitHooks {
 public:
  // The five verbs, and Backward which frames OnGradReady.
  void BeforeUnit(int unit) override = 0;
  void AfterUnit(int unit) override = 0;
  virtual void OnGradReady(int parameter) = 0;
  // Possible errors: those of a Collective; the gradients are then of no use and no update may follow.
  virtual absl::Status FinishBackward() = 0;
  // REQUIRES: FinishBackward has returned OK.
  virtual StepOutput Step(const StepInput& input) = 0;

  // Runs `loss` backward; gradients are added to those of earlier micro-batches. `last` says that no other follows in
  // this step on this rank.
  virtual void Backward(const at::Tensor& loss, bool last) = 0;

  // This rank's part of the step is of no use (its loss is not finite): every rank will skip the update of this very
  // step. REQUIRES: called before Backward of the step's last micro-batch.
  virtual void RejectStep() = 0;

  // For checkpoints. Views into the flat buffers under the parameters' own names and shapes, in their order: read them
  // to save, copy into them to restore, then say how many updates were made.
  virtual std::vector<NamedTensor> FirstMoments() = 0;
  virtual std::vector<NamedTensor> SecondMoments() = 0;
  virtual uint64_t num_updates() const = 0;
  virtual void set_num_updates(uint64_t num_updates) = 0;

  // Names of the parameters of each bucket, in launch order.
  virtual std::vector<std::vector<std::string>> BucketOrder() const = 0;

  // xxh3-128, hex, of all parameters' bytes in order: the same on every rank after every step.
  virtual std::string ParametersHash() const = 0;
};

// Moves the parameters of `model` into flat buffers and makes them those of rank 0. Called by Parallelize.
// Possible errors: those of a Collective.
absl::StatusOr<std::unique_ptr<DataParallel>> NewDdp(Model& model, Communicator& communicator,
                                                     const DataParallelOptions& options);

}  // namespace trainyard
