// Whole tensors, for checkpoint.format full and checkpoint.weights_copy: gathered from all ranks unit by unit into
// memory of rank 0, which is kept for the next save. The loop's.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/parallel/data_parallel.h"
#include "worker/trainer/save_task.h"

namespace trainyard {

// What is to lie whole, each in a file of its own.
struct WholeFiles {
  bool parameters = false;
  bool optimizer = false;
  std::string copy_dtype = {};  // of a copy of the parameters, as in safetensors; empty: none

  bool any() const { return parameters || optimizer || !copy_dtype.empty(); }
};

// What the tensors of such a copy are; none where it is of no type.
std::vector<TensorHeader> CopyHeaders(const DataParallel& strategy, const std::string& copy_dtype);

class GatheredState {
 public:
  // Adds files of whole tensors to the task of the rank that `writes`. Collective. Possible errors: those of a
  // Collective.
  absl::Status AddTo(DataParallel& strategy, const WholeFiles& wanted, bool writes, SaveTask& task);

  // A parameter that is beyond the range of the copy's type, and has become infinite in the newest one; empty: none.
  const std::string& beyond_range() const { return beyond_range_; }

 private:
  at::Tensor bytes_;
  std::string beyond_range_;
};

}  // namespace trainyard
