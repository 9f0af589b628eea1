// Data parallelism: every rank trains on its own samples, and all ranks make the update that one process with all the
// samples would make. This class connects the model, whose parameters it moves into flat groups, to the communicators.
// What a strategy does follows from the table in sharding.h.
//
// The calls of a step. The number of rounds is the same on every rank; a rank with fewer micro-batches calls
// RunEmptyRound in the last ones:
//
//   strategy.BeginStep(tokens)
//   for each round:
//     loss = strategy.Forward([&] { return model.LossSum(..., strategy, ...); })
//     strategy.Backward(loss, last)      adds up gradients; with `last` reduces them while backward continues
//   or, without a micro-batch:
//     strategy.RunEmptyRound(/*with_backward=*/true, last)
//   strategy.FinishBackward()            starts the reductions that no round has started, and waits for all of them
//   strategy.Step({...})                 divides once by the step's tokens, clips, updates; if the gradient of any
//                                        rank is not finite, no rank updates anything
//
// An evaluation calls Forward with grad mode disabled, or RunEmptyRound(/*with_backward=*/false, /*last=*/false), in
// the same number of rounds on every rank.
//
// After the first error every call returns that error: the generation is over.
//
// Used by one thread, that of the training loop (on a CPU backward runs on it too). Does not own model or
// communicators, which must outlive this object.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/model.h"
#include "worker/parallel/data_parallel_options.h"
#include "worker/parallel/mesh_communicators.h"
#include "worker/parallel/parallel_state.h"
#include "worker/parallel/unit_runner.h"
#include "worker/parallel/update.h"

namespace trainyard {

class DataParallel : public UnitHooks {
 public:
  // Called before the first round of a step; required where losses are scaled. StepOutput::exposed_comm_s counts from
  // here. `num_tokens`: as in StepInput or, if that number is not known yet, any number of the same magnitude that is
  // equal on every rank.
  virtual void BeginStep(uint64_t num_tokens) = 0;

  // Waits for the gathers that the previous step started. In a pipeline stage with sharded parameters, also gathers all
  // units, which stay gathered until the update. Every pass calls this function; a rank that runs no pass must call it
  // too, because the gathers of its peers wait for this rank.
  virtual absl::Status AwaitParameters() = 0;

  // Runs a pass; `loss_sum` runs the model with this object as its hooks. With grad mode enabled, Backward must follow;
  // with grad mode disabled, the pass is an evaluation, which adds no gradients. Fails with the errors of a Collective,
  // and with FailedPrecondition if the model's units do not run in the order of units().
  virtual absl::StatusOr<at::Tensor> Forward(absl::FunctionRef<at::Tensor()> loss_sum) = 0;
  // Adds gradients to those of earlier rounds. `last`: no other round follows in this step, on any rank.
  virtual absl::Status Backward(const at::Tensor& loss, bool last) = 0;
  // The same for a part of the model that ends with another output than the loss: continues backward with the gradient
  // of that output. `output` is an invalid edge if no parameter that the output depends on is trained.
  virtual absl::Status BackwardFrom(const torch::autograd::Edge& output, const at::Tensor& gradient, bool last) = 0;
  // From BeginDeferring until TakeDeferred, Backward and BackwardFrom only store the products that compute gradients of
  // weights. RunDeferred runs them, later in the same step.
  using DeferredProducts = std::vector<std::function<void()>>;
  virtual void BeginDeferring() = 0;
  virtual DeferredProducts TakeDeferred() = 0;
  virtual absl::Status RunDeferred(const DeferredProducts& products) = 0;
  // A round for which this rank has no micro-batch: it takes part in the collectives with gradients of zero.
  virtual absl::Status RunEmptyRound(bool with_backward, bool last) = 0;

  // Makes every rank skip the update of this step, because this rank's loss is not finite. REQUIRES: called before the
  // Backward or RunEmptyRound of the step's last round.
  virtual void RejectStep() = 0;
  virtual absl::Status FinishBackward() = 0;
  // Collective. REQUIRES: FinishBackward has returned OK.
  virtual absl::StatusOr<StepOutput> Step(const StepInput& input) = 0;

  // The time for which this rank has waited for operations of this object with other ranks, in steps and between them.
  virtual double waited_s() const = 0;

  virtual ParallelState& state() = 0;
};

// Called by Parallelize, which checks the arguments. `runner` runs the bodies of units.
absl::StatusOr<std::unique_ptr<DataParallel>> ApplyDataParallel(Model& model, const MeshCommunicators& communicators,
                                                                const DataParallelOptions& options,
                                                                const UpdateOptions& update,
                                                                std::unique_ptr<UnitRunner> runner);

}  // namespace trainyard
