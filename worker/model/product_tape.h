// Stores the outputs of a unit's matrix products in its first run, so that a second run (parallel/recompute.h)
// recomputes everything except them. The body of a unit gets the tape and passes it to its products (ops/linear.h).
// The backward of a product needs only the factors, so a replayed product has bitwise the gradients of a computed one.
//
//   first run, without grad mode    Keep(product) ...
//   Rewind()
//   second run, under grad mode     Next() ...          returns and releases them in the same order
//
// Not thread-safe: used only by the thread that runs the model.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace trainyard {

class ProductTape {
 public:
  bool replays() const { return replays_; }
  void Keep(const at::Tensor& product) { products_.push_back(product); }
  // REQUIRES: the second run has the same products as the first, in the same order.
  at::Tensor Next() { return std::exchange(products_.at(next_++), at::Tensor()); }
  void Rewind() { replays_ = true; }

 private:
  bool replays_ = false;
  size_t next_ = 0;
  std::vector<at::Tensor> products_;
};

}  // namespace trainyard
