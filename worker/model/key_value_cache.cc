#include "worker/model/key_value_cache.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "worker/model/ops/attention.h"
#include "worker/model/ops/cached_attention.h"

namespace trainyard {
namespace {

// The address of row `row` of x [1, rows, columns].
char* RowAddress(const at::Tensor& x, int64_t row) {
  return static_cast<char*>(x.data_ptr()) + row * x.stride(1) * static_cast<int64_t>(x.element_size());
}

bool IsOurs(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

}  // namespace

KeyValueCache::KeyValueCache(const CacheShape& shape, Room room, const at::TensorOptions& options)
    : shape_(shape), positions_(room.positions), lengths_(static_cast<size_t>(room.sequences), 0) {
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    for (std::vector<at::Tensor>* tensors : {&keys_, &values_}) {
      tensors->push_back(at::empty({room.sequences, room.positions, shape.kv_heads * shape.depth}, options));
    }
  }
}

CachedPass::CachedPass(const std::vector<SequenceTokens>& added, KeyValueCache& cache) : cache_(cache) {
  std::vector<int64_t> tokens, positions;
  for (const SequenceTokens& sequence : added) {
    const int64_t count = static_cast<int64_t>(sequence.tokens.size()), start = cache.length(sequence.sequence);
    TORCH_CHECK(count > 0 && start + count <= cache.positions(), "sequence ", sequence.sequence, " of ", start,
                " tokens cannot get ", count, " more in ", cache.positions(), " positions");
    spans_.push_back({.sequence = sequence.sequence, .first_row = rows_, .count = count, .start = start});
    rows_ += count;
    tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    for (int64_t i = 0; i < count; ++i) positions.push_back(start + i);
  }
  const auto device = cache.keys_.front().device();
  const auto tensor = [&](const std::vector<int64_t>& values) {
    at::Tensor host = at::empty({rows_}, at::kLong);
    std::copy(values.begin(), values.end(), host.mutable_data_ptr<int64_t>());
    return host.to(device);
  };
  tokens_ = tensor(tokens).unsqueeze(0);
  positions_ = tensor(positions);
}

void CachedPass::Store(int64_t layer, const at::Tensor& k, const at::Tensor& v) const {
  const auto write = [this](const at::Tensor& rows, const at::Tensor& cached) {
    const size_t row_bytes = static_cast<size_t>(rows.size(2)) * rows.element_size();
    for (const Rows& span : spans_) {
      const at::Tensor sequence = cached.narrow(0, span.sequence, 1);
      if (!rows.is_cpu()) {
        sequence.narrow(1, span.start, span.count).copy_(rows.narrow(1, span.first_row, span.count));
        continue;
      }
      for (int64_t i = 0; i < span.count; ++i) {
        std::memcpy(RowAddress(sequence, span.start + i), RowAddress(rows, span.first_row + i), row_bytes);
      }
    }
  };
  write(k, cache_.keys_[static_cast<size_t>(layer)]);
  write(v, cache_.values_[static_cast<size_t>(layer)]);
}

at::Tensor CachedPass::Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              int64_t heads, int64_t window) const {
  Store(layer, k, v);
  const CacheShape& shape = cache_.shape_;
  // For the whole prompt of one sequence, the products of attention.h are faster than single queries.
  const Rows& first = spans_.front();
  if (spans_.size() == 1 && first.start == 0 && first.count > 1 && (window == 0 || first.count <= window)) {
    return GroupedAttention(q, k, v, heads, shape.kv_heads);
  }
  if (!IsOurs(q)) return AttendByLibTorch(layer, q, heads, window);
  at::Tensor out = at::empty({1, rows_, heads * shape.depth}, q.options());
  CachedAttention attention{
      .type = q.scalar_type(), .heads = heads, .kv_heads = shape.kv_heads, .depth = shape.depth, .queries = {}};
  for (const Rows& span : spans_) {
    const at::Tensor keys = cache_.keys_[static_cast<size_t>(layer)].narrow(0, span.sequence, 1);
    const at::Tensor values = cache_.values_[static_cast<size_t>(layer)].narrow(0, span.sequence, 1);
    for (int64_t i = 0; i < span.count; ++i) {
      const int64_t seen = span.start + i + 1, begin = window == 0 ? 0 : std::max<int64_t>(0, seen - window);
      attention.queries.push_back({.q = RowAddress(q, span.first_row + i),
                                   .keys = RowAddress(keys, begin),
                                   .values = RowAddress(values, begin),
                                   .out = RowAddress(out, span.first_row + i),
                                   .num_keys = seen - begin});
    }
  }
  RunCachedAttention(attention);
  return out;
}

at::Tensor CachedPass::AttendByLibTorch(int64_t layer, const at::Tensor& q, int64_t heads, int64_t window) const {
  const CacheShape& shape = cache_.shape_;
  at::Tensor out = at::empty({1, rows_, heads * shape.depth}, q.options());
  for (const Rows& span : spans_) {
    const int64_t seen = span.start + span.count;
    const auto by_heads = [&](const at::Tensor& rows, int64_t count) {
      return rows.reshape({1, rows.size(0), count, shape.depth}).transpose(1, 2);
    };
    const auto cached = [&](const std::vector<at::Tensor>& layers) {
      return by_heads(layers[static_cast<size_t>(layer)][span.sequence].narrow(0, 0, seen), shape.kv_heads);
    };
    const at::Tensor positions = at::arange(span.start, seen, q.options().dtype(at::kLong)).unsqueeze(1);
    const at::Tensor keys = at::arange(seen, positions.options()).unsqueeze(0);
    at::Tensor mask = keys <= positions;
    if (window > 0) mask = mask.logical_and(keys > positions - window);
    const at::Tensor mixed = at::scaled_dot_product_attention(
        by_heads(q[0].narrow(0, span.first_row, span.count), heads), cached(cache_.keys_), cached(cache_.values_), mask,
        /*dropout_p=*/0, /*is_causal=*/false, /*scale=*/std::nullopt, /*enable_gqa=*/heads != shape.kv_heads);
    out[0].narrow(0, span.first_row, span.count).copy_(mixed.transpose(1, 2).reshape({span.count, -1}));
  }
  return out;
}

at::Tensor CachedPass::LastRows(const at::Tensor& x) const {
  at::Tensor rows = at::empty({static_cast<int64_t>(spans_.size())}, at::kLong);
  for (size_t i = 0; i < spans_.size(); ++i) {
    rows.mutable_data_ptr<int64_t>()[i] = spans_[i].first_row + spans_[i].count - 1;
  }
  return x[0].index_select(0, rows.to(x.device()));
}

void CachedPass::Finish() {
  for (const Rows& span : spans_) cache_.lengths_[static_cast<size_t>(span.sequence)] = span.start + span.count;
}

}  // namespace trainyard
