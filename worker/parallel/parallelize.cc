#include "worker/parallel/parallelize.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trainyard {

absl::StatusOr<std::unique_ptr<DataParallel>> Parallelize(Model& model, const Mesh& mesh, Communicator& communicator,
                                                          const DataParallelOptions& options) {
  if (mesh.world_size() != communicator.world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the mesh holds ", mesh.world_size(), " ranks, the communicator ", communicator.world_size()));
  }
  for (Axis axis : {Axis::kPipeline, Axis::kShard, Axis::kContext, Axis::kTensor}) {
    if (mesh.Size(axis) != 1) {
      return absl::UnimplementedError(absl::StrCat("mesh axis ", AxisName(axis), " is ", mesh.Size(axis),
                                                   "; only dp_replicate may be more than 1"));
    }
  }

  return NewDdp(model, communicator, options);
}

}  // namespace trainyard
