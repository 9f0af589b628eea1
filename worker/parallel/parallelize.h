// Read this first: how a model is made parallel. Techniques are applied in one order,
//
//   tensor parallel -> pipeline cut -> recompute -> data parallel
//
// each to what the one before has left. Today the mesh has data ranks only and the strategy is DDP.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"
#include "worker/mesh/mesh.h"
#include "worker/model/model.h"
#include "worker/parallel/data_parallel.h"

namespace trainyard {

// Makes `model` trainable on `mesh`: its parameters are moved into flat buffers and become those of rank 0.
// Neither `model` nor `communicator` is owned; both must outlive the result.
// Possible errors: Unimplemented for a mesh axis other than dp_replicate; InvalidArgument when mesh and communicator
// differ in size; those of a Collective.
absl::StatusOr<std::unique_ptr<DataParallel>> Parallelize(Model& model, const Mesh& mesh, Communicator& communicator,
                                                          const DataParallelOptions& options);

}  // namespace trainyard
