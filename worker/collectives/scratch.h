// Memory that a communicator's operations need for themselves, kept from one to the next: a step like the one before
// allocates nothing. An operation holds what it took until it was waited for.
//
//   std::shared_ptr<Scratch> scratch = pool.Take(bytes);
//   ... started on scratch->memory, waited for ...
//   scratch->is_over = true, and dropped
//
// Whether it is free again is not asked of the tensor: transports let go of tensors some time after an operation is
// done. Of the thread that starts operations.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trainyard {

struct Scratch {
  at::Tensor memory;     // bytes
  bool is_over = false;  // the operation that it was taken for

  // Its first bytes as a tensor like `like`, but in this memory.
  at::Tensor ViewLike(const at::Tensor& like) const;
  // The same for a flat one.
  at::Tensor As(at::ScalarType type, int64_t numel) const;
};

class ScratchPool {
 public:
  // `pinned`: in host memory that a GPU copies fastest from.
  explicit ScratchPool(bool pinned = false) : pinned_(pinned) {}

  // So many bytes at least, which are the caller's until it drops them. Where it did so without `is_over`, the
  // operation may still write: the memory is left to whoever keeps it, and made anew.
  std::shared_ptr<Scratch> Take(int64_t bytes);

 private:
  const bool pinned_;
  std::vector<std::shared_ptr<Scratch>> kept_;
};

}  // namespace trainyard
