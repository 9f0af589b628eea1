// Whole tensors, for checkpoint.format full and checkpoint.weights_copy: gathered from all ranks, unit by unit, into
// memory of rank 0, which is reused by the next save. Used by the loop's thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/diagnostics/ledger.h"
#include "worker/parallel/parallel_state.h"
#include "worker/saving/save_task.h"

namespace trainyard {

// Which tensors are written whole, each kind to a file of its own.
struct WholeFiles {
  bool parameters = false;
  bool optimizer = false;
  std::string copy_dtype = {};  // data type of a copy of the parameters, as in safetensors; empty: no copy

  bool any() const { return parameters || optimizer || !copy_dtype.empty(); }
};

// Returns the headers of the tensors of a copy of the parameters; none if `copy_dtype` is empty.
std::vector<TensorHeader> CopyHeaders(const ParallelState& state, const std::string& copy_dtype);

// Bytes needed on the rank that writes.
int64_t GatheredBytes(const ParallelState& state, const WholeFiles& wanted);

class GatheredState {
 public:
  // `ledger` may be null; it is not owned.
  explicit GatheredState(Ledger* ledger) : ledger_(ledger) {}

  // Allocates and touches this many bytes, unless they are allocated already.
  void Reserve(int64_t bytes);

  // Adds files of whole tensors to the task, on the rank that `writes`. Collective. Possible errors: those of a
  // Collective.
  absl::Status AddTo(ParallelState& state, const WholeFiles& wanted, bool writes, SaveTask& task);

 private:
  Ledger* const ledger_;
  TrackedMemory held_;
  at::Tensor bytes_;
};

}  // namespace trainyard
