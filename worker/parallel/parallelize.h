// Read this first: how a model is made parallel. Techniques are applied in one order,
//
//   tensor parallel -> pipeline cut -> recompute -> data parallel
//
// each to what the one before has left. Today the mesh has data ranks only.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"
#include "worker/mesh/mesh.h"
#include "worker/model/model.h"
#include "worker/parallel/data_parallel.h"

namespace trainyard {

// Makes `model` trainable on `mesh`: its parameters are moved into flat groups and become those of rank 0. With sharded
// parameters the model's own tensors have values only while their unit runs; ask the strategy for them.
// Neither `model` nor the communicators are owned; all must outlive the result.
// Possible errors: Unimplemented for a mesh axis other than dp_replicate and dp_shard; InvalidArgument when mesh and
// communicators differ in size, or the mesh has dp_shard above 1 with ddp; those of a Collective.
absl::StatusOr<std::unique_ptr<DataParallel>> Parallelize(Model& model, const Mesh& mesh,
                                                          const MeshCommunicators& communicators,
                                                          const DataParallelOptions& options);

}  // namespace trainyard
