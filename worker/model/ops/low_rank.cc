#include "worker/model/ops/low_rank.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>

#include "models/lora_targets.h"

namespace trainyard {

LowRank LowRankOf(const ModelDescription& model, size_t index, const std::vector<NamedTensor>& parameters) {
  const ProjectionDescription& projection = model.projections[index];
  if (projection.lora_a < 0) return {};
  const auto numbered = [&](int number) {
    return NumberedTensor{parameters[static_cast<size_t>(number)].tensor, number};
  };
  return {.a = numbered(projection.lora_a), .b = numbered(projection.lora_b), .scale = LoraScale(model.sizes.lora)};
}

void AddTo(std::vector<int>& ready_order, const LowRank& adapter) {
  if (!adapter.a.tensor.defined()) return;
  ready_order.push_back(adapter.b.number);
  ready_order.push_back(adapter.a.number);
}

at::Tensor AdaptedLinear(const at::Tensor& x, const LinearArgs& args, const LowRank& adapter, double dropout_rate) {
  const at::Tensor y = Linear(x, args);
  if (!adapter.a.tensor.defined()) return y;
  const at::Tensor in = dropout_rate > 0 ? at::dropout(x, dropout_rate, /*train=*/true) : x;
  const auto project = [&](const at::Tensor& from, const NumberedTensor& weight, const at::Tensor& residual = {}) {
    return Linear(from, {.weight = weight,
                         .transposed = true,
                         .residual = residual,
                         .sink = args.sink,
                         .tape = args.tape,
                         .few_rows = args.few_rows});
  };
  at::Tensor low = project(in, adapter.a);
  // The factor is applied where the tensor is smallest.
  if (adapter.scale != 1) low = low * adapter.scale;
  return project(low, adapter.b, y);
}

}  // namespace trainyard
