#include "worker/saving/device_copies.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "worker/parallel/offload.h"

namespace trainyard {
namespace {

at::Tensor MakeLike(const at::Tensor& values) {
  const at::TensorOptions pinned = HostMemoryOf(values.device()).dtype(values.scalar_type());
  try {
    return at::empty(values.sizes(), pinned);
  } catch (const c10::Error&) {
    // Pinned memory is scarcer than ordinary memory; ordinary memory makes the save slower but possible.
    return at::empty(values.sizes(), pinned.pinned_memory(false));
  }
}

}  // namespace

std::vector<at::Tensor> DeviceCopies::Copy(const std::vector<at::Tensor>& of) {
  slots_.resize(of.size());
  std::vector<at::Tensor> copies;
  for (size_t i = 0; i < of.size(); ++i) {
    Slot& slot = slots_[i];
    const bool fits = slot.memory.defined() && slot.memory.use_count() == 1 &&
                      slot.memory.scalar_type() == of[i].scalar_type() && slot.memory.sizes() == of[i].sizes();
    if (!fits) slot.memory = TrackTensor(ledger_, MemoryKind::kSnapshots, slot.held, [&] { return MakeLike(of[i]); });
    copies.push_back(slot.memory.copy_(of[i], /*non_blocking=*/true));
  }
  if (!of.empty() && !of[0].is_cpu()) {
    c10::impl::VirtualGuardImpl(of[0].device().type()).getStream(of[0].device()).synchronize();
  }
  return copies;
}

}  // namespace trainyard
