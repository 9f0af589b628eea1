// Runs the body of a unit in forward; the implementation may run it again in backward (recompute.h). Data parallelism
// calls Run between its own actions before and after a unit.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/model.h"

namespace trainyard {

class UnitRunner {
 public:
  virtual ~UnitRunner() = default;
  virtual at::Tensor Run(int unit, const at::Tensor& x, const UnitBody& body) = 0;
};

}  // namespace trainyard
