// A pool of working memory for a communicator's operations, reused between operations, so that a step that equals the
// previous one allocates nothing. An operation holds its memory until it has been waited for.
//
//   std::shared_ptr<Scratch> scratch = pool.Acquire(bytes);
//   ... start an operation on scratch->memory and wait for it ...
//   scratch->is_over = true;  scratch.reset();
//
// A tensor's reference count does not show when the memory is free: transports release tensors some time after an
// operation is done. Not thread-safe: used only by the thread that starts operations.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trainyard {

struct Scratch {
  at::Tensor memory;     // bytes
  bool is_over = false;  // the operation that uses this memory has ended

  // The first bytes as a tensor with the type and shape of `like`.
  at::Tensor ViewLike(const at::Tensor& like) const;
  // The first bytes as a flat tensor.
  at::Tensor As(at::ScalarType type, int64_t numel) const;
};

class ScratchPool {
 public:
  // `pinned`: allocates page-locked host memory, from which a GPU copies fastest.
  explicit ScratchPool(bool pinned = false) : pinned_(pinned) {}

  // Returns at least `bytes` of memory, which belongs to the caller until it drops the pointer. If the caller drops it
  // without setting `is_over`, the operation may still write there: the pool leaves that memory to its other owners and
  // allocates new memory.
  std::shared_ptr<Scratch> Acquire(int64_t bytes);

 private:
  const bool pinned_;
  std::vector<std::shared_ptr<Scratch>> kept_;
};

}  // namespace trainyard
