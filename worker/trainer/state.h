// Between a rank's tensors and the bytes of a checkpoint: parameters and both AdamW moments, under the parameters'
// names. Belongs to the loop's thread.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/writer.h"
#include "worker/model/model.h"
#include "worker/parallel/data_parallel.h"

namespace trainyard {

// A view of the state; it is valid until the next update. The tensors that had to be copied first are kept in `owners`.
struct StateView {
  std::vector<TensorBytes> tensors;
  std::vector<at::Tensor> owners;
};
StateView ViewState(Model& model, DataParallel& strategy);

// Overwrites the state. Possible errors: NotFound, FailedPrecondition when the checkpoint is of another model;
// DataLoss.
absl::Status LoadState(const Checkpoint& checkpoint, Model& model, DataParallel& strategy);

// Parameters alone, for sampling.
absl::Status LoadParametersFrom(const Checkpoint& checkpoint, Model& model);

// Initial weights of `train.model.init_from`, from a safetensors file; optimizer state in it is passed over. Possible
// errors: those of opening it, and of LoadParameters.
absl::Status InitializeFrom(const std::string& path, Model& model);

}  // namespace trainyard
