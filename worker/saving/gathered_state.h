// Whole tensors, for checkpoint.format full and checkpoint.weights_copy: gathered from all ranks unit by unit into
// memory of rank 0, which is kept for the next save. The loop's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/diagnostics/ledger.h"
#include "worker/parallel/data_parallel.h"
#include "worker/saving/save_task.h"

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

// Bytes that all of it takes on the rank that writes.
int64_t GatheredBytes(const DataParallel& strategy, const WholeFiles& wanted);

class GatheredState {
 public:
  // `ledger` may be null; it is not owned.
  explicit GatheredState(Ledger* ledger) : ledger_(ledger) {}

  // Takes memory for so much and touches it, unless it is there.
  void Reserve(int64_t bytes);

  // Adds files of whole tensors to the task of the rank that `writes`. Collective. Possible errors: those of a
  // Collective.
  absl::Status AddTo(DataParallel& strategy, const WholeFiles& wanted, bool writes, SaveTask& task);

 private:
  Ledger* const ledger_;
  TrackedMemory held_;
  at::Tensor bytes_;
};

}  // namespace trainyard
