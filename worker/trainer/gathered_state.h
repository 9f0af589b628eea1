// Whole tensors for checkpoint.format full: gathered from all ranks unit by unit into memory of rank 0, which is kept
// for the next save. The loop's.
#pragma once

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "worker/parallel/data_parallel.h"
#include "worker/trainer/save_task.h"

namespace trainyard {

class GatheredState {
 public:
  // Adds files of whole tensors to the task of the rank that `writes`: parameters, and with `optimizer` the rest.
  // Collective. Possible errors: those of a Collective.
  absl::Status AddTo(DataParallel& strategy, bool optimizer, bool writes, SaveTask& task);

 private:
  at::Tensor bytes_;
};

}  // namespace trainyard
