// Read this first: how a model is made parallel. The techniques are applied in one order, each to the result of the one
// before:
//
//   DivideModel   tensor parallel: this rank's part of each matrix        (models/model_part.h, model/tensor_group.h)
//                 sequence parallel: this rank's rows between products    (model/ops/sequence_part.h)
//                 pipeline: this rank's blocks, embedding and head
//   Parallelize   recompute: what backward computes again                 (recompute.h)
//                 data parallel: flat groups, reductions, updates         (data_parallel.h)
//   NewExecutor   pipeline: the order of the passes, and what they send   (pipeline_executor.h)
//
// A technique that a job does not use changes nothing. For example, a mesh without the axes pp and tp has the whole
// model as its only part, and its schedule runs forward and backward of one micro-batch after another.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "models/model_sizes.h"
#include "plan/pipeline_schedule.h"
#include "worker/collectives/pipeline_channels.h"
#include "worker/mesh/mesh.h"
#include "worker/model/model.h"
#include "worker/model/tensor_group.h"
#include "worker/parallel/data_parallel.h"
#include "worker/parallel/pipeline_executor.h"
#include "worker/parallel/recompute.h"

namespace trainyard {

// How the blocks are divided among the axis pp of the mesh.
struct PipelineLayout {
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  int chunks_per_rank = 1;
  std::vector<int> split = {};  // blocks of each chunk of the model; empty: as equal as possible
};

struct ParallelOptions {
  Recompute recompute = {};
  DataParallelOptions data = {};
  UpdateOptions update = {};
};

// The whole model, of which a rank holds a part.
struct ModelSource {
  ModelSizes sizes;
  uint64_t seed = 0;
  at::ScalarType type = at::kFloat;  // of the masters
  bool divides_sequence = false;     // over the axis tp of the mesh (model/ops/sequence_part.h)
};

// Makes the part of `rank`, without memory for its parameters. `tensor_group` must outlive the part; it is null if the
// part runs no pass or the mesh has no axis tp. Fails with InvalidArgument, listing all reasons, if the model cannot be
// divided for this mesh.
absl::StatusOr<std::unique_ptr<Model>> DivideModel(const ModelSource& source, const Mesh& mesh, int rank,
                                                   const PipelineLayout& pipeline, TensorGroup* tensor_group);

// Makes `model`, the part of a rank, trainable on `mesh`: its parameters are moved into flat groups and get the values
// of the first data rank. Where parameters are sharded, the model's own tensors have values only while they are
// gathered; state() has the values. Neither `model` nor the communicators are owned; all must outlive the result.
// Fails with Unimplemented for the mesh axis cp; with InvalidArgument if mesh and communicators differ in size, the
// model is not the part of a rank of this mesh, or the mesh has dp_shard above 1 with ddp; with the errors of a
// Collective.
absl::StatusOr<std::unique_ptr<DataParallel>> Parallelize(Model& model, const Mesh& mesh,
                                                          const MeshCommunicators& communicators,
                                                          const ParallelOptions& options);

// Returns an executor, which runs the passes of the part. The arguments must outlive it. `events`: records the waits
// for other stages; may be null.
std::unique_ptr<PipelineExecutor> NewExecutor(const Mesh& mesh, int rank, const PipelineLayout& pipeline, Model& model,
                                              DataParallel& strategy, const PipelineChannels& channels,
                                              EventLog* events = nullptr);

}  // namespace trainyard
