#include "worker/model/ops/attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/model/ops/attention_kernel.h"
#include "worker/numerics/gemm.h"

namespace trainyard {
namespace {

at::Tensor RunLibTorchAttention(const at::Tensor& qkv, int64_t heads, double drop) {
  const int64_t sequences = qkv.size(0), tokens = qkv.size(1), width = qkv.size(2) / 3;
  // One unbind instead of three selects: its backward writes the three gradients next to each other in one pass.
  const std::vector<at::Tensor> parts = qkv.view({sequences, tokens, 3, heads, width / heads}).unbind(2);
  at::Tensor q = parts[0].transpose(1, 2), k = parts[1].transpose(1, 2), v = parts[2].transpose(1, 2);
  at::Tensor mixed = at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, drop, /*is_causal=*/true);
  return mixed.transpose(1, 2).reshape({sequences, tokens, width});
}

// The address of element `offset` of a tensor of any type.
std::byte* At(const at::Tensor& tensor, int64_t offset) {
  return static_cast<std::byte*>(tensor.data_ptr()) + offset * static_cast<int64_t>(tensor.element_size());
}

// Calls `run(shape, tokens_before, head_offset, first_row, scratch)` for each head of each sequence: the number of
// tokens in earlier sequences, the head's first element within a token, and the head's first row in `log_sums`.
template <typename Run>
void ForHeads(const at::Tensor& qkv, int64_t heads, const Run& run) {
  const int64_t sequences = qkv.size(0), width = qkv.size(2) / 3;
  const AttentionShape shape{.tokens = qkv.size(1), .depth = width / heads, .width = width};
  at::parallel_for(0, sequences * heads, 1, [&](int64_t first, int64_t last) {
    at::Tensor scratch = at::empty({AttentionScratchBytes(shape)}, at::kByte);
    for (int64_t i = first; i < last; ++i) {
      const int64_t tokens_before = i / heads * shape.tokens, head_offset = i % heads * shape.depth;
      run(shape, tokens_before, head_offset, i * shape.tokens, scratch.mutable_data_ptr());
    }
  });
}

at::Tensor Forward(const at::Tensor& qkv, int64_t heads, const at::Tensor& log_sums) {
  const int64_t width = qkv.size(2) / 3;
  at::Tensor out = at::empty({qkv.size(0), qkv.size(1), width}, qkv.options());
  ForHeads(
      qkv, heads,
      [&](const AttentionShape& shape, int64_t tokens_before, int64_t head_offset, int64_t first_row, void* scratch) {
        RunAttention(shape,
                     AttentionForward{.type = qkv.scalar_type(),
                                      .qkv = At(qkv, tokens_before * 3 * width + head_offset),
                                      .out = At(out, tokens_before * width + head_offset),
                                      .log_sums = log_sums.mutable_data_ptr<float>() + first_row},
                     scratch);
      });
  return out;
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& qkv, int64_t heads) {
    at::Tensor log_sums = at::empty({qkv.size(0), heads, qkv.size(1)}, qkv.options().dtype(at::kFloat));
    at::Tensor out = Forward(qkv, heads, log_sums);
    context->save_for_backward({qkv, out, log_sums});
    context->saved_data["heads"] = heads;
    return out;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &qkv = saved[0], &out = saved[1], &log_sums = saved[2];
    const at::Tensor grad_out = gradients[0].contiguous();
    at::Tensor grad_qkv = at::empty_like(qkv);
    const int64_t width = qkv.size(2) / 3;
    ForHeads(
        qkv, context->saved_data["heads"].toInt(),
        [&](const AttentionShape& shape, int64_t tokens_before, int64_t head_offset, int64_t first_row, void* scratch) {
          RunAttention(shape,
                       AttentionBackward{.type = qkv.scalar_type(),
                                         .qkv = At(qkv, tokens_before * 3 * width + head_offset),
                                         .out = At(out, tokens_before * width + head_offset),
                                         .log_sums = log_sums.const_data_ptr<float>() + first_row,
                                         .grad_out = At(grad_out, tokens_before * width + head_offset),
                                         .grad_qkv = At(grad_qkv, tokens_before * 3 * width + head_offset)},
                       scratch);
        });
    return {grad_qkv, at::Tensor()};
  }
};

}  // namespace

at::Tensor CausalAttentionBy(AttentionKernel kernel, const at::Tensor& qkv, int64_t heads, double drop) {
  if (kernel == AttentionKernel::kLibTorch) return RunLibTorchAttention(qkv, heads, drop);
  return AttentionFunction::apply(qkv.contiguous(), heads);
}

at::Tensor CausalAttention(const at::Tensor& qkv, int64_t heads, double drop) {
  const bool use_own = drop == 0 && qkv.is_cpu() && HasGemm(qkv.scalar_type()) && qkv.numel() > 0;
  return CausalAttentionBy(use_own ? AttentionKernel::kOwn : AttentionKernel::kLibTorch, qkv, heads, drop);
}

}  // namespace trainyard
