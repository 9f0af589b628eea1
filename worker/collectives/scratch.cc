#include "worker/collectives/scratch.h"

#include <ATen/ops/empty.h>

namespace trainyard {

at::Tensor Scratch::ViewLike(const at::Tensor& like) const {
  return As(like.scalar_type(), like.numel()).view(like.sizes());
}

at::Tensor Scratch::As(at::ScalarType type, int64_t numel) const {
  return memory.narrow(0, 0, numel * static_cast<int64_t>(c10::elementSize(type))).view(type);
}

std::shared_ptr<Scratch> ScratchPool::Acquire(int64_t bytes) {
  const auto allocate = [&] { return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(pinned_)); };
  for (const std::shared_ptr<Scratch>& kept : kept_) {
    if (kept.use_count() > 1) continue;
    if (!kept->is_over || kept->memory.numel() < bytes) kept->memory = allocate();
    kept->is_over = false;
    return kept;
  }
  return kept_.emplace_back(std::make_shared<Scratch>(Scratch{.memory = allocate()}));
}

}  // namespace trainyard
