#include "worker/saving/device_copies.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "worker/parallel/offload.h"

namespace trainyard {
namespace {

at::Tensor MakeHostTensor(const at::Tensor& values) {
  const at::TensorOptions pinned = HostMemoryOf(values.device()).dtype(values.scalar_type());
  try {
    return at::empty(values.sizes(), pinned);
  } catch (const c10::Error&) {
    // There is less pinned memory than ordinary memory; with ordinary memory the save is slower, but possible.
    return at::empty(values.sizes(), pinned.pinned_memory(false));
  }
}

}  // namespace

std::vector<at::Tensor> DeviceCopies::Copy(const std::vector<at::Tensor>& tensors) {
  slots_.resize(tensors.size());
  std::vector<at::Tensor> copies;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Slot& slot = slots_[i];
    const bool fits = slot.memory.defined() && slot.memory.use_count() == 1 &&
                      slot.memory.scalar_type() == tensors[i].scalar_type() &&
                      slot.memory.sizes() == tensors[i].sizes();
    if (!fits)
      slot.memory = TrackTensor(ledger_, MemoryKind::kSnapshots, slot.held, [&] { return MakeHostTensor(tensors[i]); });
    copies.push_back(slot.memory.copy_(tensors[i], /*non_blocking=*/true));
  }
  if (!tensors.empty() && !tensors[0].is_cpu()) {
    c10::impl::VirtualGuardImpl(tensors[0].device().type()).getStream(tensors[0].device()).synchronize();
  }
  return copies;
}

}  // namespace trainyard
