#include "worker/trainer/device_copies.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "worker/parallel/offload.h"

namespace trainyard {

std::vector<at::Tensor> DeviceCopies::Copy(const std::vector<at::Tensor>& of) {
  kept_.resize(of.size());
  for (size_t i = 0; i < of.size(); ++i) {
    at::Tensor& to = kept_[i];
    const bool fits =
        to.defined() && to.use_count() == 1 && to.scalar_type() == of[i].scalar_type() && to.sizes() == of[i].sizes();
    if (!fits) to = at::empty(of[i].sizes(), HostMemoryOf(of[i].device()).dtype(of[i].scalar_type()));
    to.copy_(of[i], /*non_blocking=*/true);
  }
  if (!of.empty() && !of[0].is_cpu()) {
    c10::impl::VirtualGuardImpl(of[0].device().type()).getStream(of[0].device()).synchronize();
  }
  return kept_;
}

}  // namespace trainyard
