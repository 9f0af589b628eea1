// One training run with the product's own components on a rank, and its results in full precision, which the parity
// tests compare with the oracle (reference.h: plain training in one process) and with each other. The mesh of the rank
// says how the model is divided.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/pipeline_schedule.h"
#include "tests/parity/rank_pool.h"
#include "worker/model/model_factory.h"
#include "worker/parallel/parallelize.h"

namespace trainyard {

struct TrainingCase {
  at::ScalarType type = at::kDouble;
  std::string precision = "-";  // fp16, bf16, or bf16-master for bf16 masters too; "-": `type` for everything
  int64_t steps = 1;
  int64_t global = 12;
  int64_t micro = 1;
  double clip_norm = 0;
  ModelFamily family = ModelFamily::kGpt2;
  double dropout = 0;      // only for GPT-2 and for adapters
  bool lora = false;       // adapters on some projections; the frozen matrices have large initial values
  bool documents = false;  // each sequence has two, packed without attention across them
  bool masked = false;     // a varying number of targets at the beginning of each sequence have no loss
  Strategy strategy = Strategy::kDdp;
  int64_t bucket_elements = 4096;  // so few that there are several buckets
  bool overlap = true;
  bool reduce_scatter = true;
  bool reduce_every_micro_batch = false;
  bool reshard_after_forward = true;
  int64_t prefetch_elements = -1;
  RecomputeMode recompute = RecomputeMode::kNone;
  int64_t recompute_every = 1;
  bool offload_optimizer = false;
  bool offload_parameters = false;
  int64_t tile_elements = defaults::kOptimizerTileElements;
  int64_t rejected_step = 0;  // the last rank rejects its loss in this step; 0: none
  // In each step one rank is late for one of its collectives: for the first in step 1, the second in step 2, ...
  int64_t delay_ms = 0;
  int64_t link_delay_us = 0;  // each packet between stages is late by a random time, at most this
  // The sizes of the preset lab-tiny, a GPT-2; otherwise blocks whose size is not a multiple of a layout's alignment.
  bool lab_tiny = false;
  int64_t blocks = 0;  // not 0: sizes that stages and four tensor ranks can divide, with this number of blocks
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  int64_t chunks = 1;                  // of each pipeline stage
  bool sequence = false;               // tensor ranks divide the sequence
  bool reverse_micro_batches = false;  // each rank runs its micro-batches in reverse order
  int64_t epoch = 0;            // the number of samples in an epoch, in the product's order; 0: the text is endless
  int64_t scale_window = 1000;  // for fp16: good steps until the loss scale is doubled
  // A checkpoint of the whole state is written into `folder` after `save_step`; with `load_step` a run starts from the
  // checkpoint of that step. 0: none. `folder` must not contain spaces.
  int64_t save_step = 0;
  int64_t load_step = 0;
  std::string folder = "-";
  std::string copy_folder = "-";  // the loaded state is saved there immediately, in this layout

  std::string ToString() const;  // in the format of a rank's arguments
  static TrainingCase Parse(const std::string& text);

  ModelSizes model() const;
  LoraSettings adapters() const;
  ParallelOptions options() const;
  double LearningRate(int64_t step) const;
};

struct TrainingOutcome {
  std::vector<double> losses;    // mean over the tokens of each step's global batch
  std::vector<double> norms;     // of the gradient; NaN: the step was skipped on all ranks
  std::string parameters_hash;   // of the rank's part of the model
  double sum_of_parameters = 0;  // sum of absolute values of the whole model, in which copies count once
  // The hash of each box that the rank holds, by its name (parallel_state.h).
  std::map<std::string, std::string> boxes;
  std::string counts;  // collectives of the last step, "world all-reduce 3, shard ..."

  std::string ToString() const;
  static TrainingOutcome Parse(const std::string& text);
};

// Collective call: saves a checkpoint of the state into `folder`, like a job, but all ranks wait until it is complete.
absl::Status SaveTo(const std::string& folder, int64_t step, const PoolRank& rank, ParallelState& state,
                    uint64_t consumed_samples = 0);

// Runs the case on this rank. A model with adapters cannot be divided among tensor ranks.
absl::StatusOr<TrainingOutcome> Train(const PoolRank& rank, const TrainingCase& training);
// Runs the case that `arguments` describe, as the main "train" of a pool; returns the outcome as text.
absl::StatusOr<std::string> TrainMain(const PoolRank& rank, const std::string& arguments);

// Runs the case through the oracle, which has neither ranks nor strategies nor micro-batches. With dropout it runs the
// product's model in a plain loop with the oracle's optimizer.
TrainingOutcome TrainReference(const TrainingCase& training);

}  // namespace trainyard
