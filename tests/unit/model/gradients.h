// Shared by the tests of operations: gradients, differences, and a sink that collects gradients.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "worker/model/model.h"
#include "worker/model/ops/layer_norm.h"

namespace trainyard {

inline at::Tensor Leaf(const at::Tensor& value) { return value.detach().clone().requires_grad_(true); }

// Returns the largest difference, relative to the largest element of `expected`.
inline double RelativeDifference(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor exact = expected.detach().to(at::kDouble);
  return ((found.detach().to(at::kDouble) - exact).abs().max() / exact.abs().max().clamp_min(1e-30)).item<double>();
}

// Returns `y`, and the gradients of the weighted sum of `y` with respect to the leaves.
inline std::vector<at::Tensor> WithGradients(const at::Tensor& y, const at::Tensor& weights,
                                             const std::vector<at::Tensor>& leaves) {
  (y * weights.to(y.scalar_type())).sum().backward();
  std::vector<at::Tensor> all{y.detach()};
  for (const at::Tensor& leaf : leaves) all.push_back(leaf.grad());
  return all;
}

// As WithGradients, for the two results of a norm: the gradients are those of weighted sums of `out.y` and `out.x`.
inline std::vector<at::Tensor> NormWithGradients(const Normalised& out, const at::Tensor& weights,
                                                 const std::vector<at::Tensor>& leaves) {
  const auto weighted_sum = [&](const at::Tensor& t) { return (t * weights.to(t.scalar_type())).sum(); };
  (weighted_sum(out.y) + weighted_sum(out.x) * 0.5).backward();
  std::vector<at::Tensor> all{out.y.detach()};
  for (const at::Tensor& leaf : leaves) all.push_back(leaf.grad());
  return all;
}

// Accepts every gradient.
class CollectingSink final : public GradientSink {
 public:
  explicit CollectingSink(std::vector<at::Tensor> places)
      : places_(std::move(places)), claimed_(places_.size()), done_(places_.size()) {}
  Place Claim(int parameter) override {
    const size_t i = static_cast<size_t>(parameter);
    return {.tensor = places_[i], .overwrites = claimed_[i]++ == 0};
  }
  void Done(int parameter) override { ++done_[static_cast<size_t>(parameter)]; }
  const std::vector<int>& done() const { return done_; }

 private:
  std::vector<at::Tensor> places_;
  std::vector<int> claimed_, done_;
};

}  // namespace trainyard
