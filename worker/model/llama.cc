#include "worker/model/llama.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>

#include <algorithm>

#include "common/status_macros.h"
#include "models/head_loss_limits.h"
#include "models/llama_description.h"
#include "worker/model/initial_values.h"
#include "worker/model/key_value_cache.h"
#include "worker/model/ops/attention.h"
#include "worker/model/ops/head_loss.h"
#include "worker/model/ops/linear.h"
#include "worker/model/ops/low_rank.h"
#include "worker/model/ops/rms_norm.h"
#include "worker/model/ops/rotary.h"
#include "worker/model/ops/sequence_part.h"
#include "worker/model/ops/swiglu.h"
#include "worker/model/ops/tensor_linear.h"
#include "worker/model/ops/vocabulary_parallel.h"
#include "worker/model/part_checks.h"
#include "worker/model/product_tape.h"

namespace trainyard {
namespace {

constexpr size_t kProjectionsOfBlock = 7;

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

// What a pass of one micro-batch through the blocks needs.
struct LlamaPass {
  at::Tensor starts = {}, positions = {};  // undefined: each sequence is one document
  std::optional<SequencePart> part = {};
};

class Llama final : public Model {
 public:
  Llama(const ModelDescription& description, const ModelPart& part, uint64_t seed, at::ScalarType type,
        TensorGroup* tensor_group)
      : sizes_(description.sizes), tensor_group_(part.tensor_size > 1 ? tensor_group : nullptr) {
    AddParameters(description, part, type);
    int next = 0;
    if (part.embeds || (part.heads && sizes_.tied)) embedding_ = Next(next);
    if (part.heads) norm_ = Next(next);
    if (part.heads && !sizes_.tied) head_ = Next(next);
    const bool qkv_bias = sizes_.attention_bias != AttentionBias::kNone;
    const std::vector<int> indexes = IndexesInPart();
    for (size_t unit = 1; unit < units_.size(); ++unit) {
      next = units_[unit].first_parameter;
      size_t number = static_cast<size_t>(units_[unit].number - 1) * kProjectionsOfBlock;
      LlamaBlock& block = blocks_.emplace_back();
      block.input_norm = Next(next);
      for (Projection* projection : {&block.q, &block.k, &block.v}) *projection = NextProjection(next, qkv_bias);
      block.o = NextProjection(next, sizes_.attention_bias == AttentionBias::kAll);
      block.attended_norm = Next(next);
      for (Projection* projection : {&block.gate, &block.up, &block.down}) {
        *projection = NextProjection(next, sizes_.mlp_bias);
      }
      for (Projection* projection : {&block.q, &block.k, &block.v, &block.o, &block.gate, &block.up, &block.down}) {
        projection->adapter = LowRankOf(description, number++, parameters_, indexes);
      }
    }
    set_initial_values(DrawInitialValues(description, seed));
  }

  at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& targets, UnitHooks& hooks,
                     std::optional<DropoutKey> dropout, const at::Tensor& starts) override {
    return RunChunk(0, /*boundary=*/{}, {.inputs = inputs, .targets = targets, .starts = starts, .dropout = dropout},
                    hooks);
  }

  at::Tensor RunChunk(int chunk, const at::Tensor& boundary, const MicroBatch& batch, UnitHooks& hooks) override {
    std::optional<DropoutKey> dropout = batch.dropout;
    if (sizes_.lora.dropout <= 0) dropout = std::nullopt;
    CheckGroup(part_, tensor_group_);
    hooks.BeforeRoot();
    const LlamaPass pass{.starts = batch.starts,
                         .positions = PositionsInDocuments(batch.starts),
                         .part = SequencePartOf(part_, tensor_group_, batch.inputs)};
    at::Tensor x = boundary.defined() ? boundary : Embed(batch.inputs, pass);
    x = RunBlocks(chunk, x, batch.inputs.size(1), hooks, dropout, pass);
    if (!part_.heads || chunk + 1 < static_cast<int>(part_.chunks.size())) return hooks.AfterRoot(x);
    GradientSink* sink = hooks.sink();
    x = LastNorm(x, sink);
    const bool keeps_scores = sizes_.vocabulary < kHeadLossVocabulary;
    const NumberedTensor& head = sizes_.tied ? embedding_ : head_;
    GradientSink* const sink_of_head = sizes_.tied ? nullptr : sink;
    if (tensor_group_ != nullptr) {
      return hooks.AfterRoot(
          VocabularyLoss(x, RowsOfRank(head, pass.part), batch.targets, output_type_, keeps_scores, sink_of_head));
    }
    if (!keeps_scores) return hooks.AfterRoot(HeadLoss(x, head, batch.targets, output_type_, sink_of_head));
    return hooks.AfterRoot(LossOfScores(ScoresOf(x, sink), batch.targets));
  }

  at::Tensor Logits(const at::Tensor& inputs, UnitHooks& hooks) override {
    CheckWhole(part_);
    hooks.BeforeRoot();
    at::Tensor x = at::embedding(embedding_.tensor, inputs);
    x = RunBlocks(/*chunk=*/0, x, inputs.size(1), hooks, /*dropout=*/std::nullopt, /*pass=*/{});
    GradientSink* sink = hooks.sink();
    return hooks.AfterRoot(ScoresOf(LastNorm(x, sink), sink).view({inputs.size(0), inputs.size(1), -1}));
  }

  at::Tensor Decode(const std::vector<SequenceTokens>& added, KeyValueCache& cache) override {
    CheckWhole(part_);
    c10::NoGradGuard no_grad;
    CachedPass pass(added, cache);
    at::Tensor x = at::embedding(embedding_.tensor, pass.tokens());
    const RotaryTable table = RowsOf(TableFor(cache.positions(), x), pass.positions());
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const CachedLayer cached{.pass = &pass, .number = static_cast<int64_t>(i)};
      x = Forward(blocks_[i], x, table, /*of_batch=*/{}, /*dropout=*/{}, /*sink=*/nullptr, /*tape=*/nullptr, cached);
    }
    pass.Finish();
    const at::Tensor last = RmsNorm(pass.LastRows(x), norm_, sizes_.norm_eps).y;
    return ScoresOf(last, /*sink=*/nullptr, /*few_rows=*/true);
  }
  CacheShape cache_shape() const override {
    return {.layers = sizes_.layers, .kv_heads = sizes_.kv_heads, .depth = sizes_.head_width};
  }

  bool FeedsUnits(int number) const override { return part_.embeds && number == embedding_.number; }

  // Backward runs the operations in the reverse order of forward; the weight of a projection comes before its bias, and
  // its adapter before both.
  std::vector<int> ReadyOrder() const override {
    std::vector<int> order;
    const auto add = [&order](const NumberedTensor& parameter) {
      if (parameter.tensor.defined()) order.push_back(parameter.number);
    };
    // Where another part has the embedding, the gradient of a tied matrix is complete after the head.
    if (!part_.embeds) add(embedding_);
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
    if (part_.embeds) add(embedding_);  // the gradient of a tied head is complete only here
    return order;
  }

  int64_t context() const override { return sizes_.context; }
  int64_t vocabulary() const override { return sizes_.vocabulary; }

 private:
  // Runs the blocks of a chunk on sequences of `tokens` tokens.
  at::Tensor RunBlocks(int chunk, at::Tensor x, int64_t tokens, UnitHooks& hooks,
                       const std::optional<DropoutKey>& dropout, const LlamaPass& pass) {
    GradientSink* sink = hooks.sink();
    const RotaryTable table = TableFor(tokens, x);
    const UnitRange units = UnitsOfChunk(chunk);
    for (int unit = units.first; unit < units.last; ++unit) {
      x = hooks.RunUnit(unit, x, [this, unit, table, pass, dropout, sink](const at::Tensor& in, ProductTape* tape) {
        const UnitDropout of_unit = DropoutOf(dropout, units_[static_cast<size_t>(unit)].number, sizes_.lora.dropout);
        return Forward(blocks_[static_cast<size_t>(unit) - 1], in, table, pass, of_unit, sink, tape);
      });
    }
    return x;
  }

  at::Tensor Embed(const at::Tensor& inputs, const LlamaPass& pass) const {
    if (tensor_group_ != nullptr) return EmbedVocabulary(RowsOfRank(embedding_, pass.part), inputs);
    return at::embedding(embedding_.tensor, inputs);
  }
  // This tensor rank's rows of a matrix of the vocabulary.
  VocabularyRows RowsOfRank(const NumberedTensor& matrix, const std::optional<SequencePart>& part) const {
    return {.weight = matrix,
            .first = boxes_[static_cast<size_t>(matrix.number)].start[0],
            .group = tensor_group_,
            .part = part};
  }

  // Returns the output of the last norm, [sequences x tokens, width], or this rank's rows of it.
  at::Tensor LastNorm(const at::Tensor& x, GradientSink* sink) const {
    return RmsNorm(x, norm_, sizes_.norm_eps, sink).y.view({-1, sizes_.width});
  }

  // Returns the scores of all positions, [sequences x tokens, vocabulary].
  at::Tensor ScoresOf(const at::Tensor& last, GradientSink* sink, bool few_rows = false) const {
    // A tied head's gradient goes through autograd, which adds it to that of the embedding.
    at::Tensor scores = sizes_.tied
                            ? TransposedLinear(last, embedding_.tensor, few_rows)
                            : Linear(last, {.weight = head_, .transposed = true, .sink = sink, .few_rows = few_rows});
    return output_type_.has_value() ? scores.to(*output_type_) : scores;
  }

  // In a pass over a cache, `table` has a row for each row of x. `dropout`: of the inputs of adapters.
  at::Tensor Forward(const LlamaBlock& block, const at::Tensor& x, const RotaryTable& table, const LlamaPass& of_batch,
                     const UnitDropout& dropout, GradientSink* sink, ProductTape* tape,
                     const CachedLayer& cached = {}) const {
    const auto args_of = [&](const Projection& projection) {
      return LinearArgs{.weight = projection.weight,
                        .transposed = true,
                        .bias = projection.bias,
                        .sink = sink,
                        .tape = tape,
                        .few_rows = cached.is_single(),
                        .part = of_batch.part};
    };
    // Projections of the same input. Tensor ranks divide the outputs of these products.
    const auto project = [&](const at::Tensor& in, std::initializer_list<const Projection*> projections) {
      std::vector<LinearArgs> args;
      for (const Projection* each : projections) args.push_back(args_of(*each));
      if (tensor_group_ != nullptr) return ColumnLinear(in, args, *tensor_group_);
      std::vector<at::Tensor> results;
      for (const Projection* each : projections) {
        results.push_back(AdaptedLinear(in, args[results.size()], each->adapter, dropout));
      }
      return results;
    };
    // Adds a projection to `residual`. Tensor ranks divide the inputs of this product.
    const auto add_projection = [&](const at::Tensor& residual, const at::Tensor& in, const Projection& projection) {
      LinearArgs args = args_of(projection);
      args.residual = residual;
      args.group = tensor_group_;
      return AdaptedLinear(in, args, projection.adapter, dropout);
    };
    const int64_t heads = sizes_.heads / part_.tensor_size, kv_heads = sizes_.kv_heads / part_.tensor_size;
    const Normalised in = RmsNorm(x, block.input_norm, sizes_.norm_eps, sink);
    std::vector<at::Tensor> qkv = project(in.y, {&block.q, &block.k, &block.v});
    for (at::Tensor* each : {&qkv[0], &qkv[1]}) *each = Rotate(*each, table, of_batch.positions);
    const at::Tensor mixed =
        cached.pass != nullptr ? cached.pass->Attend(cached.number, qkv[0], qkv[1], qkv[2], sizes_.heads, sizes_.window)
                               : GroupedAttention(qkv[0], qkv[1], qkv[2], heads, kv_heads, of_batch.starts);
    const Normalised attended =
        RmsNorm(add_projection(in.x, mixed, block.o), block.attended_norm, sizes_.norm_eps, sink);
    const std::vector<at::Tensor> hidden = project(attended.y, {&block.gate, &block.up});
    return add_projection(attended.x, SwiGlu(hidden[0], hidden[1]), block.down);
  }

  // Returns a table of at least `tokens` positions for activations like `x`, and keeps the table for the next pass.
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
  TensorGroup* const tensor_group_;         // null: this rank has the matrices whole
  NumberedTensor embedding_, norm_, head_;  // undefined: a tied head_, and tensors of another part
  std::vector<LlamaBlock> blocks_;
  RotaryTable table_;
  at::ScalarType table_type_ = at::kFloat;  // the type of the activations for which table_ was made
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> NewLlama(const ModelSizes& sizes, const ModelPart& part, uint64_t seed,
                                                at::ScalarType type, TensorGroup* tensor_group) {
  RETURN_IF_ERROR(CheckSizes(sizes));
  return std::make_unique<Llama>(DescribeLlama(sizes), part, seed, type, tensor_group);
}

}  // namespace trainyard
