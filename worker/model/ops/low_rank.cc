#include "worker/model/ops/low_rank.h"

#include <ATen/TensorOperators.h>

#include "models/lora_targets.h"

namespace trainyard {

LowRank LowRankOf(const ModelDescription& model, size_t index, const std::vector<NamedTensor>& parameters,
                  const std::vector<int>& indexes) {
  const ProjectionDescription& projection = model.projections[index];
  if (projection.lora_a < 0) return {};
  const auto numbered = [&](int number) {
    const int index_in_part = indexes[static_cast<size_t>(number)];
    return NumberedTensor{parameters[static_cast<size_t>(index_in_part)].tensor, index_in_part};
  };
  const size_t in_block = model.projections.size() / static_cast<size_t>(model.sizes.layers);
  return {.a = numbered(projection.lora_a),
          .b = numbered(projection.lora_b),
          .scale = LoraScale(model.sizes.lora),
          .place = static_cast<int>(index % in_block)};
}

void AddTo(std::vector<int>& ready_order, const LowRank& adapter) {
  if (!adapter.a.tensor.defined()) return;
  ready_order.push_back(adapter.b.number);
  ready_order.push_back(adapter.a.number);
}

at::Tensor AdaptedLinear(const at::Tensor& x, const LinearArgs& args, const LowRank& adapter,
                         const UnitDropout& dropout, const SampleSlice& slice) {
  const at::Tensor y = Linear(x, args);
  if (!adapter.a.tensor.defined()) return y;
  const auto site = static_cast<DropoutSite>(static_cast<int>(DropoutSite::kAdapter) + adapter.place);
  const at::Tensor in = Drop(x, dropout, site, slice);
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
