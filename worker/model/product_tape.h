// Outputs of a unit's matrix products, kept from its first run, so that a second one (parallel/recompute.h) makes all
// but those anew. The body of a unit gets the tape and hands it to its products (ops/linear.h); their backward needs
// nothing of them but the factors, so a replayed product has the gradients of a made one, bit for bit.
//
//   first run, without grad mode    Keep(product) ...
//   Rewind()
//   second run, under grad mode     Next() ...          given back, in the same order, and let go
//
// Belongs to the thread that runs the model.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace trainyard {

class ProductTape {
 public:
  bool replays() const { return replays_; }
  void Keep(const at::Tensor& product) { products_.push_back(product); }
  // REQUIRES: the second run asks for the products of the first, in their order.
  at::Tensor Next() { return std::exchange(products_.at(next_++), at::Tensor()); }
  void Rewind() { replays_ = true; }

 private:
  bool replays_ = false;
  size_t next_ = 0;
  std::vector<at::Tensor> products_;
};

}  // namespace trainyard
