// Copies state from a device into host memory that is reused from one save to the next. The memory is pinned where
// possible, because a device copies fastest to it. Used by the loop's thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/diagnostics/ledger.h"

namespace trainyard {

class DeviceCopies {
 public:
  // `ledger` may be null; it is not owned.
  explicit DeviceCopies(Ledger* ledger) : ledger_(ledger) {}

  // Copies all tensors, in their order, and returns when all copies are complete. A copy that is still referenced is
  // not overwritten, because a writer that hangs may still read it; a new one is made.
  std::vector<at::Tensor> Copy(const std::vector<at::Tensor>& tensors);

 private:
  struct Slot {
    TrackedMemory held;
    at::Tensor memory;
  };
  Ledger* const ledger_;
  std::vector<Slot> slots_;
};

}  // namespace trainyard
