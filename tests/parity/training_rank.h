// The objects with which one rank of a parity test trains, made as in worker/trainer/rank.cc: its part of the model,
// the communicators and channels, the strategy and the executor.
//
// Belongs to the thread that trains.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "tests/parity/delays.h"
#include "tests/parity/rank_pool.h"
#include "tests/parity/training.h"
#include "worker/collectives/pipeline_channels.h"
#include "worker/model/model.h"
#include "worker/parallel/communicator_tensor_group.h"
#include "worker/parallel/data_parallel.h"
#include "worker/parallel/pipeline_executor.h"

namespace trainyard {

struct TrainingRank {
  TrainingRank(const PoolRank& rank, const TrainingCase& training) : groups(rank.groups, training.delay_ms) {}

  DelayedGroups groups;
  OwnedPipelineChannels channels;
  std::unique_ptr<DelayedChannels> delayed_channels;
  std::unique_ptr<CommunicatorTensorGroup> tensor_group;  // null: there is one tensor rank
  std::unique_ptr<Model> model;
  std::unique_ptr<DataParallel> strategy;
  std::unique_ptr<PipelineExecutor> executor;
  bool reports_losses = false;  // true on one of the ranks with the same data rank
};

// The seed of initial values, dropout and the order of samples.
inline constexpr uint64_t kTrainingSeed = 20;

// Enlarges frozen weights: adapters cannot lower the loss if the head is small. REQUIRES: the model has memory.
void EnlargeFrozen(const TrainingCase& training, Model& model);

// Collective. Possible errors: those of JoinPipeline, PartOfRank and Parallelize.
absl::StatusOr<std::unique_ptr<TrainingRank>> MakeTrainingRank(const PoolRank& rank, const TrainingCase& training);

}  // namespace trainyard
