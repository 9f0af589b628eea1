// Read this first: how a model is made parallel. Parallelize applies the techniques in one order, each to the result of
// the one before:
//
//   tensor parallel -> pipeline -> recompute -> data parallel
//
// Tensor and pipeline parallelism do not exist yet; a mesh that needs them is refused.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/mesh/mesh.h"
#include "worker/model/model.h"
#include "worker/parallel/data_parallel.h"
#include "worker/parallel/recompute.h"

namespace trainyard {

struct ParallelOptions {
  Recompute recompute = {};
  DataParallelOptions data = {};
  UpdateOptions update = {};
};

// Makes `model` trainable on `mesh`: its parameters are moved into flat groups and get the values of rank 0. Where
// parameters are sharded, the model's own tensors have values only while their unit runs; state() has the values.
// Neither `model` nor the communicators are owned; all must outlive the result.
// Fails with Unimplemented for a mesh axis other than dp_replicate and dp_shard; with InvalidArgument if mesh and
// communicators differ in size, or the mesh has dp_shard above 1 with ddp; with the errors of a Collective.
absl::StatusOr<std::unique_ptr<DataParallel>> Parallelize(Model& model, const Mesh& mesh,
                                                          const MeshCommunicators& communicators,
                                                          const ParallelOptions& options);

}  // namespace trainyard
