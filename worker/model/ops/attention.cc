#include "worker/model/ops/attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <optional>

#include "worker/model/ops/attention_kernel.h"
#include "worker/numerics/gemm.h"

namespace trainyard {
namespace {

// Functions of autograd take no undefined tensors.
std::optional<at::Tensor> Given(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor.contiguous()) : std::nullopt;
}

// For each pair of tokens, whether the first attends to the second, [sequences, 1, tokens, tokens]. nullopt: each token
// attends to itself and to all tokens before it.
std::optional<at::Tensor> MaskOf(const at::Tensor& starts) {
  if (!starts.defined()) return std::nullopt;
  const at::Tensor positions = at::arange(starts.size(1), starts.options());
  const at::Tensor columns = positions.view({1, 1, 1, -1});
  return (columns >= starts.unsqueeze(1).unsqueeze(-1)).logical_and(columns <= positions.view({1, 1, -1, 1}));
}

// This is our own code, because scaled_dot_product_attention would draw from a generator of the process. As that
// function does with dropout, this one computes 16-bit products in fp32.
at::Tensor MixWithDropout(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionDropout& drop,
                          const at::Tensor& starts) {
  const at::ScalarType type = at::isReducedFloatingType(q.scalar_type()) ? at::kFloat : q.scalar_type();
  const int64_t tokens = q.size(2);
  // Multiplies each factor by the root of the scale, instead of the product by the scale, to avoid overflow.
  const double root_of_scale = std::pow(static_cast<double>(q.size(3)), -0.25);
  at::Tensor scores = at::matmul(q.to(type) * root_of_scale, (k.to(type) * root_of_scale).transpose(-2, -1));
  const at::Tensor ends = at::arange(tokens, scores.options().dtype(at::kLong)).view({-1, 1});
  const at::Tensor hidden = starts.defined() ? MaskOf(starts)->logical_not() : ends.t() > ends;
  const at::Tensor weights = at::softmax(scores.masked_fill_(hidden, -INFINITY), /*dim=*/-1);
  const at::Tensor kept =
      Drop(weights, drop.dropout, DropoutSite::kAttentionWeights, {.first = drop.first_head * tokens * tokens});
  return at::matmul(kept, v.to(type)).to(q.scalar_type());
}

at::Tensor RunLibTorchAttention(const at::Tensor& qkv, int64_t heads, const AttentionDropout& drop,
                                const at::Tensor& starts) {
  const int64_t sequences = qkv.size(0), tokens = qkv.size(1), width = qkv.size(2) / 3;
  // One unbind instead of three selects: its backward writes the three gradients next to each other in one pass.
  const std::vector<at::Tensor> parts = qkv.view({sequences, tokens, 3, heads, width / heads}).unbind(2);
  at::Tensor q = parts[0].transpose(1, 2), k = parts[1].transpose(1, 2), v = parts[2].transpose(1, 2);
  at::Tensor mixed = drop.dropout.rate > 0 ? MixWithDropout(q, k, v, drop, starts)
                                           : at::scaled_dot_product_attention(q, k, v, MaskOf(starts), /*dropout_p=*/0,
                                                                              /*is_causal=*/!starts.defined());
  return mixed.transpose(1, 2).reshape({sequences, tokens, width});
}

// The address of element `offset` of a tensor of any type.
std::byte* At(const at::Tensor& tensor, int64_t offset) {
  return static_cast<std::byte*>(tensor.data_ptr()) + offset * static_cast<int64_t>(tensor.element_size());
}

// Where queries, keys and values are in memory; they may be parts of one tensor. `query_row` and `key_row` are the
// numbers of elements from one token to the next.
struct Layout {
  int64_t sequences = 0, tokens = 0;
  int64_t heads = 0, kv_heads = 0, depth = 0;
  int64_t query_row = 0, key_row = 0;
  at::Tensor starts = {};  // dense

  int64_t out_row() const { return heads * depth; }
  // The shape of the sequence that begins after `tokens_before` tokens of other sequences.
  AttentionShape shape(int64_t group, int64_t tokens_before) const {
    return {.tokens = tokens,
            .depth = depth,
            .group = group,
            .query_row = query_row,
            .key_row = key_row,
            .out_row = out_row(),
            .starts = starts.defined() ? starts.const_data_ptr<int64_t>() + tokens_before : nullptr};
  }
};

// A tensor and the element at which the first token's part begins.
struct Start {
  const at::Tensor& tensor;
  int64_t offset = 0;
  // The address for head `head` of the token after `tokens_before` others.
  void* Of(const Layout& layout, int64_t tokens_before, int64_t row, int64_t head) const {
    return At(tensor, tokens_before * row + offset + head * layout.depth);
  }
};
struct Factors {
  Start q, k, v;
};

// Calls `run(tokens_before, head, scratch)` for each group of `group` heads of each sequence. `tokens_before` is the
// number of tokens in earlier sequences, `head` is the group's first head.
template <typename Run>
void ForGroups(const Layout& layout, int64_t group, const Run& run) {
  const int64_t groups = layout.heads / group;
  at::parallel_for(0, layout.sequences * groups, 1, [&](int64_t first, int64_t last) {
    at::Tensor scratch = at::empty({AttentionScratchBytes(layout.shape(group, 0))}, at::kByte);
    for (int64_t i = first; i < last; ++i) {
      run(i / groups * layout.tokens, i % groups * group, scratch.mutable_data_ptr());
    }
  });
}

at::Tensor NewLogSums(const Layout& layout, const at::Tensor& like) {
  return at::empty({layout.sequences, layout.heads, layout.tokens}, like.options().dtype(at::kFloat));
}

at::Tensor Forward(const Layout& layout, const Factors& in, const at::Tensor& log_sums) {
  at::Tensor out = at::empty({layout.sequences, layout.tokens, layout.out_row()}, in.q.tensor.options());
  const int64_t heads_per_key = layout.heads / layout.kv_heads;
  ForGroups(layout, /*group=*/1, [&](int64_t before, int64_t head, void* scratch) {
    const int64_t key_head = head / heads_per_key;
    RunAttention(
        layout.shape(1, before),
        AttentionForward{.type = out.scalar_type(),
                         .q = in.q.Of(layout, before, layout.query_row, head),
                         .k = in.k.Of(layout, before, layout.key_row, key_head),
                         .v = in.v.Of(layout, before, layout.key_row, key_head),
                         .out = Start{out}.Of(layout, before, layout.out_row(), head),
                         .log_sums = log_sums.mutable_data_ptr<float>() + before * layout.heads + head * layout.tokens},
        scratch);
  });
  return out;
}

// Writes the gradients of `in` to `grad`, which has the same layout as `in`.
void Backward(const Layout& layout, const Factors& in, const at::Tensor& out, const at::Tensor& log_sums,
              const at::Tensor& grad_out, const Factors& grad) {
  const int64_t heads_per_key = layout.heads / layout.kv_heads;
  ForGroups(layout, heads_per_key, [&](int64_t before, int64_t head, void* scratch) {
    const int64_t key_head = head / heads_per_key;
    RunAttention(
        layout.shape(heads_per_key, before),
        AttentionBackward{.type = out.scalar_type(),
                          .q = in.q.Of(layout, before, layout.query_row, head),
                          .k = in.k.Of(layout, before, layout.key_row, key_head),
                          .v = in.v.Of(layout, before, layout.key_row, key_head),
                          .out = Start{out}.Of(layout, before, layout.out_row(), head),
                          .log_sums = log_sums.const_data_ptr<float>() + before * layout.heads + head * layout.tokens,
                          .grad_out = Start{grad_out}.Of(layout, before, layout.out_row(), head),
                          .grad_q = grad.q.Of(layout, before, layout.query_row, head),
                          .grad_k = grad.k.Of(layout, before, layout.key_row, key_head),
                          .grad_v = grad.v.Of(layout, before, layout.key_row, key_head)},
        scratch);
  });
}

// The layout of queries, keys and values that are parts of one tensor.
Layout FusedLayout(const at::Tensor& qkv, int64_t heads, const at::Tensor& starts) {
  const int64_t row = qkv.size(2);
  return {.sequences = qkv.size(0),
          .tokens = qkv.size(1),
          .heads = heads,
          .kv_heads = heads,
          .depth = row / 3 / heads,
          .query_row = row,
          .key_row = row,
          .starts = starts};
}
Factors FusedFactors(const at::Tensor& qkv) {
  const int64_t width = qkv.size(2) / 3;
  return {.q = {qkv}, .k = {qkv, width}, .v = {qkv, 2 * width}};
}

struct FusedAttentionFunction : torch::autograd::Function<FusedAttentionFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& qkv, int64_t heads,
                            const std::optional<at::Tensor>& starts) {
    const Layout layout = FusedLayout(qkv, heads, starts.value_or(at::Tensor()));
    at::Tensor log_sums = NewLogSums(layout, qkv);
    at::Tensor out = Forward(layout, FusedFactors(qkv), log_sums);
    context->save_for_backward({qkv, out, log_sums, layout.starts});
    context->saved_data["heads"] = heads;
    return out;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &qkv = saved[0], &out = saved[1], &log_sums = saved[2];
    at::Tensor grad_qkv = at::empty_like(qkv);
    Backward(FusedLayout(qkv, context->saved_data["heads"].toInt(), saved[3]), FusedFactors(qkv), out, log_sums,
             gradients[0].contiguous(), FusedFactors(grad_qkv));
    return {grad_qkv, at::Tensor(), at::Tensor()};
  }
};

Layout GroupedLayout(const at::Tensor& q, const at::Tensor& k, int64_t heads, int64_t kv_heads,
                     const at::Tensor& starts) {
  return {.sequences = q.size(0),
          .tokens = q.size(1),
          .heads = heads,
          .kv_heads = kv_heads,
          .depth = q.size(2) / heads,
          .query_row = q.size(2),
          .key_row = k.size(2),
          .starts = starts};
}

struct GroupedAttentionFunction : torch::autograd::Function<GroupedAttentionFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, int64_t heads, int64_t kv_heads,
                            const std::optional<at::Tensor>& starts) {
    const Layout layout = GroupedLayout(q, k, heads, kv_heads, starts.value_or(at::Tensor()));
    at::Tensor log_sums = NewLogSums(layout, q);
    at::Tensor out = Forward(layout, {.q = {q}, .k = {k}, .v = {v}}, log_sums);
    context->save_for_backward({q, k, v, out, log_sums, layout.starts});
    context->saved_data["heads"] = heads;
    context->saved_data["kv_heads"] = kv_heads;
    return out;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &log_sums = saved[4];
    const Layout layout =
        GroupedLayout(q, k, context->saved_data["heads"].toInt(), context->saved_data["kv_heads"].toInt(), saved[5]);
    const at::Tensor grad_q = at::empty_like(q), grad_k = at::empty_like(k), grad_v = at::empty_like(v);
    Backward(layout, {.q = {q}, .k = {k}, .v = {v}}, out, log_sums, gradients[0].contiguous(),
             {.q = {grad_q}, .k = {grad_k}, .v = {grad_v}});
    return {grad_q, grad_k, grad_v, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor RunLibTorchGroupedAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads,
                                       int64_t kv_heads, const at::Tensor& starts) {
  const int64_t sequences = q.size(0), tokens = q.size(1);
  const auto by_heads = [&](const at::Tensor& x, int64_t count) {
    return x.reshape({sequences, tokens, count, -1}).transpose(1, 2);
  };
  at::Tensor mixed = at::scaled_dot_product_attention(
      by_heads(q, heads), by_heads(k, kv_heads), by_heads(v, kv_heads), MaskOf(starts), /*dropout_p=*/0,
      /*is_causal=*/!starts.defined(), /*scale=*/std::nullopt, /*enable_gqa=*/heads != kv_heads);
  return mixed.transpose(1, 2).reshape(q.sizes());
}

}  // namespace

at::Tensor CausalAttentionBy(AttentionKernel kernel, const at::Tensor& qkv, int64_t heads, const AttentionDropout& drop,
                             const at::Tensor& starts) {
  if (kernel == AttentionKernel::kLibTorch) return RunLibTorchAttention(qkv, heads, drop, starts);
  return FusedAttentionFunction::apply(qkv.contiguous(), heads, Given(starts));
}

at::Tensor CausalAttention(const at::Tensor& qkv, int64_t heads, const AttentionDropout& drop,
                           const at::Tensor& starts) {
  const bool use_own = drop.dropout.rate == 0 && qkv.is_cpu() && HasGemm(qkv.scalar_type()) && qkv.numel() > 0;
  return CausalAttentionBy(use_own ? AttentionKernel::kOwn : AttentionKernel::kLibTorch, qkv, heads, drop, starts);
}

at::Tensor GroupedAttentionBy(AttentionKernel kernel, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              int64_t heads, int64_t kv_heads, const at::Tensor& starts) {
  if (kernel == AttentionKernel::kLibTorch) return RunLibTorchGroupedAttention(q, k, v, heads, kv_heads, starts);
  return GroupedAttentionFunction::apply(q.contiguous(), k.contiguous(), v.contiguous(), heads, kv_heads,
                                         Given(starts));
}

at::Tensor GroupedAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads,
                            int64_t kv_heads, const at::Tensor& starts) {
  const bool use_own = q.is_cpu() && HasGemm(q.scalar_type()) && q.numel() > 0;
  return GroupedAttentionBy(use_own ? AttentionKernel::kOwn : AttentionKernel::kLibTorch, q, k, v, heads, kv_heads,
                            starts);
}

}  // namespace trainyard
