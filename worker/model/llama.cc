#include "worker/model/llama.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>

#include <algorithm>

#include "common/status_macros.h"
#include "models/llama_description.h"
#include "worker/model/dropout.h"
#include "worker/model/initial_values.h"
#include "worker/model/key_value_cache.h"
#include "worker/model/ops/attention.h"
#include "worker/model/ops/head_loss.h"
#include "worker/model/ops/linear.h"
#include "worker/model/ops/low_rank.h"
#include "worker/model/ops/rms_norm.h"
#include "worker/model/ops/rotary.h"
#include "worker/model/ops/swiglu.h"
#include "worker/model/product_tape.h"

namespace trainyard {
namespace {

constexpr int64_t kNoLoss = -1;  // the target of a position that has no loss

// A projection, whose weight is [out, in]; the bias may be undefined.
struct Projection {
  NumberedTensor weight, bias;
  LowRank adapter = {};
};

struct LlamaBlock {
  NumberedTensor input_norm;
  Projection q, k, v, o;
  NumberedTensor attended_norm;
  Projection gate, up, down;
};

// Undefined tensors: each sequence is one document.
struct Documents {
  at::Tensor starts = {}, positions = {};
};

class Llama final : public Model {
 public:
  Llama(const ModelDescription& description, uint64_t seed, at::ScalarType type) : sizes_(description.sizes) {
    AddParameters(description, type);
    int next = 0;
    embedding_ = Next(next);
    norm_ = Next(next);
    if (!sizes_.tied) head_ = Next(next);
    const bool qkv_bias = sizes_.attention_bias != AttentionBias::kNone;
    size_t number = 0;
    for (int64_t i = 0; i < sizes_.layers; ++i) {
      next = units_[static_cast<size_t>(i) + 1].first_parameter;
      LlamaBlock& block = blocks_.emplace_back();
      block.input_norm = Next(next);
      for (Projection* projection : {&block.q, &block.k, &block.v}) *projection = NextProjection(next, qkv_bias);
      block.o = NextProjection(next, sizes_.attention_bias == AttentionBias::kAll);
      block.attended_norm = Next(next);
      for (Projection* projection : {&block.gate, &block.up, &block.down}) {
        *projection = NextProjection(next, sizes_.mlp_bias);
      }
      for (Projection* projection : {&block.q, &block.k, &block.v, &block.o, &block.gate, &block.up, &block.down}) {
        projection->adapter = LowRankOf(description, number++, parameters_);
      }
    }
    set_initial_values(DrawInitialValues(description, seed));
  }

  at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& targets, UnitHooks& hooks,
                     std::optional<DropoutKey> dropout, const at::Tensor& starts) override {
    if (sizes_.lora.dropout <= 0) dropout = std::nullopt;
    if (sizes_.vocabulary >= kHeadLossVocabulary) {
      GradientSink* sink = sizes_.tied ? nullptr : hooks.sink();
      const at::Tensor last = LastNorm(inputs, hooks, dropout, starts);
      return hooks.AfterRoot(HeadLoss(last, sizes_.tied ? embedding_ : head_, targets, output_type_, sink));
    }
    at::Tensor scores = Scores(inputs, hooks, dropout, starts);
    return hooks.AfterRoot(at::cross_entropy_loss(scores, targets.reshape({-1}), {}, at::Reduction::Sum, kNoLoss));
  }

  at::Tensor Logits(const at::Tensor& inputs, UnitHooks& hooks) override {
    at::Tensor scores = Scores(inputs, hooks, std::nullopt, /*starts=*/{});
    return hooks.AfterRoot(scores.view({inputs.size(0), inputs.size(1), -1}));
  }

  at::Tensor Decode(const std::vector<SequenceTokens>& added, KeyValueCache& cache) override {
    c10::NoGradGuard no_grad;
    CachedPass pass(added, cache);
    at::Tensor x = at::embedding(embedding_.tensor, pass.tokens());
    const RotaryTable table = RowsOf(TableFor(cache.positions(), x), pass.positions());
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const CachedLayer cached{.pass = &pass, .number = static_cast<int64_t>(i)};
      x = Forward(blocks_[i], x, table, /*documents=*/{}, /*dropout_rate=*/0, /*sink=*/nullptr, /*tape=*/nullptr,
                  cached);
    }
    pass.Finish();
    const at::Tensor last = RmsNorm(pass.LastRows(x), norm_, sizes_.norm_eps).y;
    return ScoresOf(last, /*sink=*/nullptr, /*few_rows=*/true);
  }
  CacheShape cache_shape() const override {
    return {.layers = sizes_.layers, .kv_heads = sizes_.kv_heads, .depth = sizes_.head_width};
  }

  bool FeedsUnits(int number) const override { return number == embedding_.number; }

  // Backward runs the operations in the reverse order of forward; the weight of a projection comes before its bias, and
  // its adapter before both.
  std::vector<int> ReadyOrder() const override {
    std::vector<int> order;
    const auto add = [&order](const NumberedTensor& parameter) {
      if (parameter.tensor.defined()) order.push_back(parameter.number);
    };
    add(head_);
    add(norm_);
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
      const auto add_all = [&](std::initializer_list<const Projection*> projections) {
        for (const Projection* projection : projections) {
          AddTo(order, projection->adapter);
          add(projection->weight);
          add(projection->bias);
        }
      };
      add_all({&block->down, &block->up, &block->gate});
      add(block->attended_norm);
      add_all({&block->o, &block->v, &block->k, &block->q});
      add(block->input_norm);
    }
    add(embedding_);  // also completes that of a tied head
    return order;
  }

  int64_t context() const override { return sizes_.context; }
  int64_t vocabulary() const override { return sizes_.vocabulary; }

 private:
  // Returns the output of the last norm, [sequences x tokens, width]. The caller calls AfterRoot, because the loss
  // belongs to the root.
  at::Tensor LastNorm(const at::Tensor& inputs, UnitHooks& hooks, const std::optional<DropoutKey>& dropout,
                      const at::Tensor& starts) {
    hooks.BeforeRoot();
    at::Tensor x = at::embedding(embedding_.tensor, inputs);
    GradientSink* sink = hooks.sink();
    const RotaryTable table = TableFor(inputs.size(1), x);
    const Documents documents{.starts = starts, .positions = PositionsInDocuments(starts)};
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const int unit = static_cast<int>(i) + 1;
      x = hooks.RunUnit(unit, x,
                        [this, i, unit, table, documents, dropout, sink](const at::Tensor& in, ProductTape* tape) {
                          if (dropout.has_value()) SeedDropout(*dropout, unit, in.device());
                          const double dropout_rate = dropout.has_value() ? sizes_.lora.dropout : 0;
                          return Forward(blocks_[i], in, table, documents, dropout_rate, sink, tape);
                        });
    }
    return RmsNorm(x, norm_, sizes_.norm_eps, sink).y.view({-1, sizes_.width});
  }

  // Returns the scores of all positions, [sequences x tokens, vocabulary].
  at::Tensor Scores(const at::Tensor& inputs, UnitHooks& hooks, const std::optional<DropoutKey>& dropout,
                    const at::Tensor& starts) {
    return ScoresOf(LastNorm(inputs, hooks, dropout, starts), hooks.sink());
  }
  at::Tensor ScoresOf(const at::Tensor& last, GradientSink* sink, bool few_rows = false) const {
    // A tied head's gradient goes through autograd, which adds it to that of the embedding.
    at::Tensor scores = sizes_.tied
                            ? TransposedLinear(last, embedding_.tensor, few_rows)
                            : Linear(last, {.weight = head_, .transposed = true, .sink = sink, .few_rows = few_rows});
    return output_type_.has_value() ? scores.to(*output_type_) : scores;
  }

  // In a pass over a cache, `table` has a row for each row of x. `dropout_rate`: of the inputs of adapters.
  at::Tensor Forward(const LlamaBlock& block, const at::Tensor& x, const RotaryTable& table, const Documents& documents,
                     double dropout_rate, GradientSink* sink, ProductTape* tape, const CachedLayer& cached = {}) const {
    const auto project = [&](const at::Tensor& in, const Projection& projection, const at::Tensor& residual = {}) {
      return AdaptedLinear(in,
                           {.weight = projection.weight,
                            .transposed = true,
                            .bias = projection.bias,
                            .residual = residual,
                            .sink = sink,
                            .tape = tape,
                            .few_rows = cached.is_single()},
                           projection.adapter, dropout_rate);
    };
    const Normalised in = RmsNorm(x, block.input_norm, sizes_.norm_eps, sink);
    at::Tensor q = project(in.y, block.q), k = project(in.y, block.k), v = project(in.y, block.v);
    q = Rotate(q, table, documents.positions);
    k = Rotate(k, table, documents.positions);
    at::Tensor mixed = cached.pass != nullptr
                           ? cached.pass->Attend(cached.number, q, k, v, sizes_.heads, sizes_.window)
                           : GroupedAttention(q, k, v, sizes_.heads, sizes_.kv_heads, documents.starts);
    const Normalised attended = RmsNorm(project(mixed, block.o, in.x), block.attended_norm, sizes_.norm_eps, sink);
    at::Tensor gate = project(attended.y, block.gate), up = project(attended.y, block.up);
    return project(SwiGlu(gate, up), block.down, attended.x);
  }

  // The table of at least `tokens` positions for activations like `x`, which is kept for the next pass.
  const RotaryTable& TableFor(int64_t tokens, const at::Tensor& x) {
    const bool fits = table_.cosines.defined() && table_.cosines.size(0) >= tokens && table_type_ == x.scalar_type() &&
                      table_.cosines.device() == x.device();
    if (!fits) {
      table_ = MakeRotaryTable(sizes_.rope, sizes_.head_width, tokens, x.options());
      table_type_ = x.scalar_type();
    }
    return table_;
  }

  NumberedTensor Next(int& next) const {
    const int number = next++;
    return {parameters_[static_cast<size_t>(number)].tensor, number};
  }
  Projection NextProjection(int& next, bool bias) const {
    const NumberedTensor weight = Next(next);
    return {.weight = weight, .bias = bias ? Next(next) : NumberedTensor()};
  }

  const ModelSizes sizes_;
  NumberedTensor embedding_, norm_, head_;  // the head is undefined if it is tied
  std::vector<LlamaBlock> blocks_;
  RotaryTable table_;
  at::ScalarType table_type_ = at::kFloat;  // of the activations that it is made for
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> NewLlama(const ModelSizes& sizes, uint64_t seed, at::ScalarType type,
                                                bool backed) {
  RETURN_IF_ERROR(CheckSizes(sizes));
  auto model = std::make_unique<Llama>(DescribeLlama(sizes), seed, type);
  if (backed) model->Materialize();
  return model;
}

}  // namespace trainyard
