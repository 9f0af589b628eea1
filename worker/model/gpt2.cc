#include "worker/model/gpt2.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>

#include <cmath>

#include "common/status_macros.h"
#include "models/gpt2_description.h"
#include "worker/model/dropout.h"
#include "worker/model/initial_values.h"
#include "worker/model/key_value_cache.h"
#include "worker/model/ops/attention.h"
#include "worker/model/ops/gelu.h"
#include "worker/model/ops/head_loss.h"
#include "worker/model/ops/layer_norm.h"
#include "worker/model/ops/linear.h"
#include "worker/model/ops/low_rank.h"
#include "worker/model/product_tape.h"

namespace trainyard {
namespace {

constexpr double kLayerNormEps = 1e-5;
constexpr int64_t kIgnored = -1;  // the target of a position that has no loss

struct Pair {
  NumberedTensor weight, bias;
};
// The weight is [in, out].
struct Gpt2Projection : Pair {
  LowRank adapter = {};
};
struct Block {
  Pair ln_1;
  Gpt2Projection c_attn, attn_proj;
  Pair ln_2;
  Gpt2Projection c_fc, mlp_proj;
};
// Rates of dropout in one pass; 0: nothing is dropped.
struct DropoutRates {
  double model = 0, adapters = 0;
};

class Gpt2 final : public Model {
 public:
  Gpt2(const ModelDescription& description, uint64_t seed, at::ScalarType type) : sizes_(description.sizes) {
    AddParameters(description, type);
    int next = 0;
    wte_ = parameters_[next++].tensor;
    wpe_ = parameters_[next++].tensor;
    ln_f_ = NextPair(next);
    size_t projection = 0;
    for (int64_t i = 0; i < sizes_.layers; ++i) {
      next = units_[static_cast<size_t>(i) + 1].first_parameter;
      Block& block = blocks_.emplace_back();
      // In the order of their numbers.
      const std::initializer_list<Pair*> pairs = {&block.ln_1, &block.c_attn, &block.attn_proj,
                                                  &block.ln_2, &block.c_fc,   &block.mlp_proj};
      for (Pair* pair : pairs) *pair = NextPair(next);
      for (Gpt2Projection* each : {&block.c_attn, &block.attn_proj, &block.c_fc, &block.mlp_proj}) {
        each->adapter = LowRankOf(description, projection++, parameters_);
      }
    }
    set_initial_values(DrawInitialValues(description, seed));
  }

  at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& targets, UnitHooks& hooks,
                     std::optional<DropoutKey> dropout, const at::Tensor& starts) override {
    if (sizes_.dropout <= 0 && sizes_.lora.dropout <= 0) dropout = std::nullopt;
    if (sizes_.vocabulary >= kHeadLossVocabulary) {
      const at::Tensor last = LastNorm(inputs, hooks, dropout, starts);
      return hooks.AfterRoot(HeadLoss(last, {wte_}, targets, output_type_));
    }
    at::Tensor scores = Scores(inputs, hooks, dropout, starts);
    return hooks.AfterRoot(at::cross_entropy_loss(scores, targets.reshape({-1}), {}, at::Reduction::Sum, kIgnored));
  }

  at::Tensor Logits(const at::Tensor& inputs, UnitHooks& hooks) override {
    at::Tensor scores = Scores(inputs, hooks, std::nullopt, /*starts=*/{});
    return hooks.AfterRoot(scores.view({inputs.size(0), inputs.size(1), -1}));
  }

  at::Tensor Decode(const std::vector<SequenceTokens>& added, KeyValueCache& cache) override {
    c10::NoGradGuard no_grad;
    CachedPass pass(added, cache);
    at::Tensor x = at::embedding(wte_, pass.tokens()) + at::embedding(wpe_, pass.positions());
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const CachedLayer cached{.pass = &pass, .number = static_cast<int64_t>(i)};
      x = Forward(blocks_[i], x, /*starts=*/{}, /*rates=*/{}, /*sink=*/nullptr, /*tape=*/nullptr, cached);
    }
    pass.Finish();
    const at::Tensor scores =
        TransposedLinear(Norm(ln_f_, pass.LastRows(x), /*sink=*/nullptr).y, wte_, /*few_rows=*/true);
    return output_type_.has_value() ? scores.to(*output_type_) : scores;
  }
  CacheShape cache_shape() const override {
    return {.layers = sizes_.layers, .kv_heads = sizes_.heads, .depth = sizes_.width / sizes_.heads};
  }

  bool FeedsUnits(int number) const override {
    return parameters_[number].tensor.is_same(wte_) || parameters_[number].tensor.is_same(wpe_);
  }

  // Within a block, parameters are numbered in the order of `Block`, an operation's weight before its bias.
  std::vector<int> ReadyOrder() const override {
    const int ln_f = 2;  // after wte and wpe
    std::vector<int> order = {ln_f, ln_f + 1};
    for (size_t unit = units_.size() - 1; unit > 0; --unit) {
      const int first = units_[unit].first_parameter;
      const Block& block = blocks_[unit - 1];
      AddTo(order, block.mlp_proj.adapter);
      // mlp.c_proj; the bias of c_fc, which GELU adds; the weight of c_fc; ln_2; attn.c_proj; c_attn; ln_1.
      for (int i : {10, 11, 9}) order.push_back(first + i);
      AddTo(order, block.c_fc.adapter);
      for (int i : {8, 6, 7}) order.push_back(first + i);
      AddTo(order, block.attn_proj.adapter);
      for (int i : {4, 5}) order.push_back(first + i);
      AddTo(order, block.c_attn.adapter);
      for (int i : {2, 3, 0, 1}) order.push_back(first + i);
    }
    order.insert(order.end(), {0, 1});  // the embedding's gradient completes that of wte, which began with the head's
    return order;
  }

  int64_t context() const override { return sizes_.context; }
  int64_t vocabulary() const override { return sizes_.vocabulary; }

 private:
  // Returns the output of the last norm, [sequences x tokens, width]. The caller calls AfterRoot, because the loss
  // belongs to the root. `dropout` unset: no dropout.
  at::Tensor LastNorm(const at::Tensor& inputs, UnitHooks& hooks, const std::optional<DropoutKey>& dropout,
                      const at::Tensor& starts) {
    hooks.BeforeRoot();
    int64_t tokens = inputs.size(1);
    const double dropout_rate = StartDropout(dropout, /*unit=*/0).model;
    const at::Tensor positions =
        starts.defined() ? at::embedding(wpe_, PositionsInDocuments(starts)) : wpe_.narrow(0, 0, tokens);
    at::Tensor x = ApplyDropout(at::embedding(wte_, inputs) + positions, dropout_rate);
    GradientSink* sink = hooks.sink();
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const int unit = static_cast<int>(i) + 1;
      x = hooks.RunUnit(unit, x, [this, i, unit, dropout, starts, sink](const at::Tensor& in, ProductTape* tape) {
        return Forward(blocks_[i], in, starts, StartDropout(dropout, unit), sink, tape);
      });
    }
    return Norm(ln_f_, x, sink).y.view({-1, sizes_.width});
  }

  // Returns the scores of all positions, [sequences x tokens, vocabulary].
  at::Tensor Scores(const at::Tensor& inputs, UnitHooks& hooks, const std::optional<DropoutKey>& dropout,
                    const at::Tensor& starts) {
    at::Tensor scores = TransposedLinear(LastNorm(inputs, hooks, dropout, starts), wte_);
    return output_type_.has_value() ? scores.to(*output_type_) : scores;
  }

  at::Tensor Forward(const Block& block, const at::Tensor& x, const at::Tensor& starts, const DropoutRates& rates,
                     GradientSink* sink, ProductTape* tape, const CachedLayer& cached = {}) const {
    const bool few_rows = cached.is_single();
    const Normalised in = Norm(block.ln_1, x, sink);
    at::Tensor qkv = AdaptedLinear(
        in.y,
        {.weight = block.c_attn.weight, .bias = block.c_attn.bias, .sink = sink, .tape = tape, .few_rows = few_rows},
        block.c_attn.adapter, rates.adapters);
    at::Tensor mixed =
        cached.pass != nullptr ? Attend(cached, qkv) : CausalAttention(qkv, sizes_.heads, rates.model, starts);
    const Normalised attended =
        Norm(block.ln_2, AddProjection(in.x, mixed, block.attn_proj, rates, sink, tape, few_rows), sink);
    at::Tensor hidden =
        AdaptedLinear(attended.y, {.weight = block.c_fc.weight, .sink = sink, .tape = tape, .few_rows = few_rows},
                      block.c_fc.adapter, rates.adapters);
    return AddProjection(attended.x, Gelu(hidden, block.c_fc.bias, sink), block.mlp_proj, rates, sink, tape, few_rows);
  }

  at::Tensor Attend(const CachedLayer& cached, const at::Tensor& qkv) const {
    const std::vector<at::Tensor> parts = qkv.split(sizes_.width, /*dim=*/-1);
    return cached.pass->Attend(cached.number, parts[0], parts[1], parts[2], sizes_.heads, /*window=*/0);
  }

  static at::Tensor AddProjection(const at::Tensor& residual, const at::Tensor& x, const Gpt2Projection& projection,
                                  const DropoutRates& rates, GradientSink* sink, ProductTape* tape, bool few_rows) {
    LinearArgs args{
        .weight = projection.weight, .bias = projection.bias, .sink = sink, .tape = tape, .few_rows = few_rows};
    if (rates.model > 0) {
      return residual + ApplyDropout(AdaptedLinear(x, args, projection.adapter, rates.adapters), rates.model);
    }
    args.residual = residual;
    return AdaptedLinear(x, args, projection.adapter, rates.adapters);
  }
  static Normalised Norm(const Pair& norm, const at::Tensor& x, GradientSink* sink) {
    return LayerNorm(x, norm.weight, norm.bias, kLayerNormEps, sink);
  }
  static at::Tensor ApplyDropout(const at::Tensor& x, double rate) {
    return rate > 0 ? at::dropout(x, rate, /*train=*/true) : x;
  }

  // Returns the dropout rates, and seeds the generator for `unit`.
  DropoutRates StartDropout(const std::optional<DropoutKey>& key, int unit) const {
    if (!key.has_value()) return {};
    SeedDropout(*key, unit, wte_.device());
    return {.model = sizes_.dropout, .adapters = sizes_.lora.dropout};
  }

  Pair NextPair(int& next) const {
    const int number = next;
    next += 2;
    return {.weight = {parameters_[number].tensor, number}, .bias = {parameters_[number + 1].tensor, number + 1}};
  }

  const ModelSizes sizes_;
  at::Tensor wte_, wpe_;
  Pair ln_f_;
  std::vector<Block> blocks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> NewGpt2(const ModelSizes& sizes, uint64_t seed, at::ScalarType type,
                                               bool backed) {
  RETURN_IF_ERROR(CheckSizes(sizes));
  auto model = std::make_unique<Gpt2>(DescribeGpt2(sizes), seed, type);
  if (backed) model->Materialize();
  return model;
}

}  // namespace trainyard
