// Copies of state that lies on a device: in host memory that the device copies fastest to (pinned, where that can be
// had), which is kept from one save to the next. The loop's.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/diagnostics/ledger.h"

namespace trainyard {

class DeviceCopies {
 public:
  // `ledger` may be null; it is not owned.
  explicit DeviceCopies(Ledger* ledger) : ledger_(ledger) {}

  // Of all of them, in their order, started one behind the other and all there when this returns. A copy that somebody
  // still holds is not written again: a writer that hangs reads the one before.
  std::vector<at::Tensor> Copy(const std::vector<at::Tensor>& of);

 private:
  struct Kept {
    TrackedMemory held;
    at::Tensor memory;
  };
  Ledger* const ledger_;
  std::vector<Kept> kept_;
};

}  // namespace trainyard
