// Runs the passes of one rank's part of a model: the actions that a schedule (plan/pipeline_schedule.h) lists for the
// rank's stage, one after another.
//
//   F  receives the output of the previous chunk, runs the chunk, sends its output to the next one
//   B  receives the gradient of that output, runs backward, sends the gradient of the chunk's input to the previous one
//   I  like B, but without the products that give the gradients of weights
//   W  runs the products that I has left out
//
// A model that is not divided has one stage, whose schedule is F0 B0 F1 B1 ..., so every job trains through this class.
// Micro-batches of a schedule are numbered from 0; they are the ones that were dealt to the data rank, in their order.
// All stages of a data rank are dealt the same micro-batches, and each stage reads them from its own data.
//
// Belongs to the thread of the training loop. After an error of the strategy or of a channel, every call that uses the
// failed object returns the same error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/pipeline_schedule.h"
#include "worker/collectives/channel.h"
#include "worker/collectives/pipeline_channels.h"
#include "worker/diagnostics/event_log.h"
#include "worker/model/model.h"
#include "worker/parallel/data_parallel.h"

namespace trainyard {

struct PipelineOptions {
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  int stage = 0;
  int stages = 1;
  int chunks_per_rank = 1;
  EventLog* events = nullptr;  // records the waits for other stages; may be null; not owned
};

// The work of one step or evaluation.
struct PipelineWork {
  std::vector<int64_t> micro_batches;  // that were dealt to this data rank, in order
  // The largest number that was dealt to any data rank. With one stage, a rank with fewer runs empty rounds, in which
  // it takes part in the collectives of the others.
  int64_t num_rounds = 0;
};

class PipelineExecutor {
 public:
  using BatchOf = absl::FunctionRef<MicroBatch(int64_t micro_batch)>;
  // Called on the last stage for each micro-batch: on a CPU before its backward, on a GPU after it.
  using OnLoss = absl::FunctionRef<void(int64_t micro_batch, const at::Tensor& loss)>;

  // Owns none of its arguments. `channels`: a channel is null where the rank has no neighbour.
  PipelineExecutor(const PipelineOptions& options, Model& model, DataParallel& strategy,
                   const PipelineChannels& channels);

  // The number of empty rounds that this rank runs. With several stages, no rank runs empty rounds: the ranks of a data
  // rank with fewer micro-batches start their reductions earlier and wait for the others.
  int64_t NumEmptyRounds(const PipelineWork& work) const;

  // Runs forward and backward of a step; BeginStep and FinishBackward of the strategy are up to the caller. Possible
  // errors: those of MakeSchedule, of the channels and of the strategy.
  absl::Status RunStep(const PipelineWork& work, BatchOf batch_of, OnLoss on_loss);
  // Runs forward only. REQUIRES: no-grad mode.
  absl::Status Evaluate(const PipelineWork& work, BatchOf batch_of, OnLoss on_loss);

  // Whether losses are computed on this rank.
  bool has_losses() const { return options_.stage == options_.stages - 1; }
  // The time for which this rank has waited for its neighbours.
  double waited_s() const;

 private:
  // A pass of one micro-batch through one chunk, between its forward and its backward.
  struct Pass {
    at::Tensor input;              // from another chunk; undefined in the first one
    torch::autograd::Edge output;  // of what was sent to another chunk; needs no memory
    at::Tensor loss;               // of the last chunk
    std::vector<int64_t> shape;    // of what chunks pass on
  };

  absl::Status RunForward(const PipelineAction& action, int64_t micro_batch, BatchOf batch_of, OnLoss on_loss);
  absl::Status RunBackward(const PipelineAction& action, int64_t micro_batch, bool last, OnLoss on_loss);
  absl::StatusOr<at::Tensor> Forward(const PipelineAction& action, int64_t micro_batch, BatchOf batch_of, Pass& pass);
  // Exchange the values at the boundary of two neighbouring chunks of the model: the output of the earlier one in
  // forward, its gradient in backward. `model_chunk` is the later of the two. If this rank has both, the values are
  // passed on without a channel. They must have `shape`.
  absl::StatusOr<at::Tensor> Receive(Channel* channel, int model_chunk, int micro_batch,
                                     const std::vector<int64_t>& shape);
  absl::Status Send(Channel* channel, int model_chunk, int micro_batch, const at::Tensor& values);
  absl::StatusOr<const std::vector<PipelineAction>*> ActionsFor(int micro_batches);
  int ModelChunk(int chunk) const { return chunk * options_.stages + options_.stage; }
  bool IsFirst(int chunk) const { return ModelChunk(chunk) == 0; }
  bool IsLast(int chunk) const { return ModelChunk(chunk) == options_.stages * options_.chunks_per_rank - 1; }

  const PipelineOptions options_;
  Model& model_;
  DataParallel& strategy_;
  const PipelineChannels channels_;
  std::map<int, std::vector<PipelineAction>> actions_;  // by number of micro-batches
  std::map<std::pair<int, int>, Pass> passes_;          // by chunk and micro-batch
  // Products of backward passes that were divided into I and W, by chunk and micro-batch.
  std::map<std::pair<int, int>, DataParallel::DeferredProducts> deferred_;
  std::map<std::pair<int, int>, at::Tensor> local_;  // between chunks of this rank, by model chunk and micro-batch
};

}  // namespace trainyard
