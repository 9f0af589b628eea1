// The keys and values of tokens that a model has seen, so that the next token of a sequence costs one row of each
// product instead of a pass over the whole sequence.
//
//   KeyValueCache cache(model->cache_shape(), {.sequences = 2, .positions = 64}, options);
//   model->Decode({{.sequence = 0, .tokens = prompt}}, cache)         scores of the token after the prompt
//   model->Decode({{.sequence = 0, .tokens = {chosen}}}, cache)       and of the one after that
//
// Memory for all positions is reserved when the cache is made; the system provides pages when they are first written.
// Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace trainyard {

// What one token adds to the cache of a model.
struct CacheShape {
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t depth = 0;  // width of one head
};

// Tokens that are added to a sequence of the cache.
struct SequenceTokens {
  int64_t sequence = 0;
  absl::Span<const int64_t> tokens;
};

class KeyValueCache {
 public:
  struct Room {
    int64_t sequences = 1;
    int64_t positions = 0;  // of each sequence
  };
  // `options`: the type and the device of the model's parameters.
  KeyValueCache(const CacheShape& shape, Room room, const at::TensorOptions& options);

  int64_t sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t positions() const { return positions_; }
  // The number of tokens of a sequence.
  int64_t length(int64_t sequence) const { return lengths_[static_cast<size_t>(sequence)]; }
  // Makes a sequence empty, to begin another one or to move the window of positions.
  void Clear(int64_t sequence) { lengths_[static_cast<size_t>(sequence)] = 0; }

 private:
  friend class CachedPass;
  const CacheShape shape_;
  const int64_t positions_;
  // For each layer: [sequences, positions, kv_heads x depth], the layout in which projections write a token.
  std::vector<at::Tensor> keys_, values_;
  std::vector<int64_t> lengths_;
};

// One pass over new tokens of several sequences, which are rows of one matrix: those of the first sequence, then those
// of the second, and so on. For the implementations of Model::Decode.
class CachedPass {
 public:
  // REQUIRES: no sequence is named twice; each has at least one new token and enough free positions.
  CachedPass(const std::vector<SequenceTokens>& added, KeyValueCache& cache);

  const at::Tensor& tokens() const { return tokens_; }        // int64, [1, rows]
  const at::Tensor& positions() const { return positions_; }  // int64, [rows]
  // Whether each sequence has one new token. Only then is the result of a row independent of the other rows.
  bool is_single() const { return rows_ == static_cast<int64_t>(spans_.size()); }

  // Adds the keys and values of the rows to the cache of a layer, and returns the attention of the queries, dense.
  // `q` is [1, rows, heads x depth], `k` and `v` are [1, rows, kv_heads x depth]; the last dimension of each is dense.
  // `window`: a token attends to this many tokens, itself included; 0: to all.
  at::Tensor Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads,
                    int64_t window) const;

  // The rows of the last new token of each sequence: [sequences, width] of x [1, rows, width].
  at::Tensor LastRows(const at::Tensor& x) const;
  // Makes the new tokens part of their sequences.
  void Finish();

 private:
  struct Rows {
    int64_t sequence, first_row, count, start;  // `start`: the position of the first new token
  };
  void Store(int64_t layer, const at::Tensor& k, const at::Tensor& v) const;
  at::Tensor AttendByLibTorch(int64_t layer, const at::Tensor& q, int64_t heads, int64_t window) const;

  KeyValueCache& cache_;
  std::vector<Rows> spans_;
  int64_t rows_ = 0;
  at::Tensor tokens_, positions_;
};

// One layer of a pass over a cache; without `pass`, the forward pass uses no cache.
struct CachedLayer {
  const CachedPass* pass = nullptr;
  int64_t number = 0;
  bool is_single() const { return pass != nullptr && pass->is_single(); }
};

}  // namespace trainyard
