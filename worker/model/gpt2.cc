#include "worker/model/gpt2.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>

#include <cmath>

#include "common/status_macros.h"
#include "models/gpt2_description.h"
#include "models/head_loss_limits.h"
#include "worker/model/initial_values.h"
#include "worker/model/key_value_cache.h"
#include "worker/model/ops/attention.h"
#include "worker/model/ops/dropout.h"
#include "worker/model/ops/gelu.h"
#include "worker/model/ops/head_loss.h"
#include "worker/model/ops/layer_norm.h"
#include "worker/model/ops/linear.h"
#include "worker/model/ops/low_rank.h"
#include "worker/model/ops/sequence_part.h"
#include "worker/model/ops/tensor_linear.h"
#include "worker/model/ops/vocabulary_parallel.h"
#include "worker/model/part_checks.h"
#include "worker/model/product_tape.h"

namespace trainyard {
namespace {

constexpr double kLayerNormEps = 1e-5;

struct Pair {
  NumberedTensor weight, bias;
};
// The weight is [in, out].
struct Gpt2Projection : Pair {
  LowRank adapter = {};
};
struct Block {
  Pair ln_1;
  std::vector<Gpt2Projection> c_attn;  // one; with tensor ranks three: queries, keys and values of this rank's heads
  Gpt2Projection attn_proj;
  Pair ln_2;
  Gpt2Projection c_fc, mlp_proj;
};
// The dropout of a unit in one pass.
struct Gpt2Dropout {
  UnitDropout model, adapters;
};
// What a pass of one micro-batch through the blocks needs, with the dropout of all units.
struct Gpt2Pass {
  at::Tensor starts = {};
  std::optional<DropoutKey> dropout = {};
  std::optional<SequencePart> part = {};
};

class Gpt2 final : public Model {
 public:
  Gpt2(const ModelDescription& description, const ModelPart& part, uint64_t seed, at::ScalarType type,
       TensorGroup* tensor_group)
      : sizes_(description.sizes),
        tensor_group_(part.tensor_size > 1 ? tensor_group : nullptr),
        local_heads_(sizes_.heads / part.tensor_size) {
    AddParameters(description, part, type);
    int next = 0;
    if (part.embeds || part.heads) wte_ = Next(next);
    if (part.embeds) wpe_ = Next(next);
    if (part.heads) ln_f_ = NextPair(next);
    const std::vector<int> indexes = IndexesInPart();
    for (size_t unit = 1; unit < units_.size(); ++unit) {
      next = units_[unit].first_parameter;
      Block& block = blocks_.emplace_back();
      // The parameters are taken in the order of their numbers.
      block.ln_1 = NextPair(next);
      block.c_attn = NextProjections(next);
      block.attn_proj = {NextPair(next)};
      block.ln_2 = NextPair(next);
      block.c_fc = {NextPair(next)};
      block.mlp_proj = {NextPair(next)};
      size_t projection = static_cast<size_t>(units_[unit].number - 1) * 4;
      for (Gpt2Projection* each : {&block.c_attn[0], &block.attn_proj, &block.c_fc, &block.mlp_proj}) {
        each->adapter = LowRankOf(description, projection++, parameters_, indexes);
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
    if (sizes_.dropout <= 0 && sizes_.lora.dropout <= 0) dropout = std::nullopt;
    CheckGroup(part_, tensor_group_);
    hooks.BeforeRoot();
    const Gpt2Pass pass{
        .starts = batch.starts, .dropout = dropout, .part = SequencePartOf(part_, tensor_group_, batch.inputs)};
    at::Tensor x = boundary.defined() ? boundary : Embed(batch.inputs, pass);
    x = RunBlocks(chunk, x, hooks, pass);
    if (!part_.heads || chunk + 1 < static_cast<int>(part_.chunks.size())) return hooks.AfterRoot(x);
    x = LastNorm(x, hooks.sink());
    const bool keeps_scores = sizes_.vocabulary < kHeadLossVocabulary;
    if (tensor_group_ != nullptr) {
      return hooks.AfterRoot(VocabularyLoss(x, Rows(pass.part), batch.targets, output_type_, keeps_scores));
    }
    if (!keeps_scores) {
      return hooks.AfterRoot(HeadLoss(x, {wte_.tensor}, batch.targets, output_type_));
    }
    return hooks.AfterRoot(LossOfScores(Scores(x), batch.targets));
  }

  at::Tensor Logits(const at::Tensor& inputs, UnitHooks& hooks) override {
    CheckWhole(part_);
    hooks.BeforeRoot();
    const at::Tensor x = RunBlocks(/*chunk=*/0, Embed(inputs, /*pass=*/{}), hooks, /*pass=*/{});
    return hooks.AfterRoot(Scores(LastNorm(x, hooks.sink())).view({inputs.size(0), inputs.size(1), -1}));
  }

  at::Tensor Decode(const std::vector<SequenceTokens>& added, KeyValueCache& cache) override {
    CheckWhole(part_);
    c10::NoGradGuard no_grad;
    CachedPass pass(added, cache);
    at::Tensor x = at::embedding(wte_.tensor, pass.tokens()) + at::embedding(wpe_.tensor, pass.positions());
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const CachedLayer cached{.pass = &pass, .number = static_cast<int64_t>(i)};
      x = Forward(blocks_[i], x, /*of_batch=*/{}, /*dropout=*/{}, /*sink=*/nullptr, /*tape=*/nullptr, cached);
    }
    pass.Finish();
    const at::Tensor scores =
        TransposedLinear(Norm(ln_f_, pass.LastRows(x), /*sink=*/nullptr).y, wte_.tensor, /*few_rows=*/true);
    return output_type_.has_value() ? scores.to(*output_type_) : scores;
  }
  CacheShape cache_shape() const override {
    return {.layers = sizes_.layers, .kv_heads = sizes_.heads, .depth = sizes_.width / sizes_.heads};
  }

  bool FeedsUnits(int number) const override {
    return part_.embeds && (number == wte_.number || number == wpe_.number);
  }

  std::vector<int> ReadyOrder() const override {
    std::vector<int> order;
    const auto add = [&order](std::initializer_list<NumberedTensor> parameters) {
      for (const NumberedTensor& parameter : parameters) order.push_back(parameter.number);
    };
    // Where another part has the embedding, the gradient of wte in this part is complete after the head.
    if (part_.heads && !part_.embeds) add({wte_});
    if (part_.heads) add({ln_f_.weight, ln_f_.bias});
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
      AddTo(order, block->mlp_proj.adapter);
      add({block->mlp_proj.weight, block->mlp_proj.bias});
      if (GeluAddsBias()) add({block->c_fc.bias});
      AddTo(order, block->c_fc.adapter);
      add({block->c_fc.weight});
      if (!GeluAddsBias()) add({block->c_fc.bias});
      add({block->ln_2.weight, block->ln_2.bias});
      AddTo(order, block->attn_proj.adapter);
      add({block->attn_proj.weight, block->attn_proj.bias});
      for (auto projection = block->c_attn.rbegin(); projection != block->c_attn.rend(); ++projection) {
        AddTo(order, projection->adapter);
        add({projection->weight, projection->bias});
      }
      add({block->ln_1.weight, block->ln_1.bias});
    }
    // The head and the embedding both add to the gradient of wte, and backward reaches the embedding last.
    if (part_.embeds) add({wte_, wpe_});
    return order;
  }

  int64_t context() const override { return sizes_.context; }
  int64_t vocabulary() const override { return sizes_.vocabulary; }

 private:
  // Whether GELU adds the bias of c_fc, as on a CPU. On a GPU the product adds it, in the same pass. With tensor ranks,
  // GELU adds it on a GPU, too.
  bool GeluAddsBias() const { return tensor_group_ != nullptr || parameters_[0].tensor.is_cpu(); }

  at::Tensor Embed(const at::Tensor& inputs, const Gpt2Pass& pass) const {
    const at::Tensor positions = Positions(inputs, pass);
    const at::Tensor tokens =
        tensor_group_ != nullptr ? EmbedVocabulary(Rows(pass.part), inputs) : at::embedding(wte_.tensor, inputs);
    const SampleSlice slice = pass.part.has_value() ? SliceOf(*pass.part, sizes_.width) : SampleSlice();
    return Drop(tokens + positions, DropoutOf(pass.dropout, /*unit=*/0, sizes_.dropout), DropoutSite::kEmbedding,
                slice);
  }

  // The rows of wpe for the tokens, without a dimension for the sequences if all sequences have the same positions.
  at::Tensor Positions(const at::Tensor& inputs, const Gpt2Pass& pass) const {
    if (!pass.part.has_value() && !pass.starts.defined()) return wpe_.tensor.narrow(0, 0, inputs.size(1));
    at::Tensor positions = pass.starts.defined() ? PositionsInDocuments(pass.starts)
                                                 : at::arange(inputs.size(1), inputs.options()).expand(inputs.sizes());
    if (pass.part.has_value()) positions = OwnRows(*pass.part, positions, /*padding=*/0);
    return at::embedding(wpe_.tensor, positions);
  }

  // This tensor rank's rows of the vocabulary.
  VocabularyRows Rows(const std::optional<SequencePart>& part) const {
    return {.weight = wte_,
            .first = boxes_[static_cast<size_t>(wte_.number)].start[0],
            .group = tensor_group_,
            .part = part};
  }

  // Runs the blocks of a chunk.
  at::Tensor RunBlocks(int chunk, at::Tensor x, UnitHooks& hooks, const Gpt2Pass& pass) {
    GradientSink* sink = hooks.sink();
    const UnitRange units = UnitsOfChunk(chunk);
    for (int unit = units.first; unit < units.last; ++unit) {
      x = hooks.RunUnit(unit, x, [this, unit, pass, sink](const at::Tensor& in, ProductTape* tape) {
        const int number = units_[static_cast<size_t>(unit)].number;
        return Forward(blocks_[static_cast<size_t>(unit) - 1], in, pass, DropoutOfUnit(pass.dropout, number), sink,
                       tape);
      });
    }
    return x;
  }

  // Returns the output of the last norm, [sequences x tokens, width], or this rank's rows of it.
  at::Tensor LastNorm(const at::Tensor& x, GradientSink* sink) const {
    return Norm(ln_f_, x, sink).y.view({-1, sizes_.width});
  }

  // Returns the scores of all positions, [sequences x tokens, vocabulary].
  at::Tensor Scores(const at::Tensor& last) const {
    const at::Tensor scores = TransposedLinear(last, wte_.tensor);
    return output_type_.has_value() ? scores.to(*output_type_) : scores;
  }

  at::Tensor Forward(const Block& block, const at::Tensor& x, const Gpt2Pass& of_batch, const Gpt2Dropout& dropout,
                     GradientSink* sink, ProductTape* tape, const CachedLayer& cached = {}) const {
    const bool gelu_adds_bias = GeluAddsBias();
    const LinearArgs c_fc{.weight = block.c_fc.weight,
                          .bias = gelu_adds_bias ? NumberedTensor() : block.c_fc.bias,
                          .sink = sink,
                          .tape = tape,
                          .few_rows = cached.is_single(),
                          .part = of_batch.part};
    const Normalised in = Norm(block.ln_1, x, sink);
    const at::Tensor mixed = Mix(block, in.y, c_fc, of_batch.starts, dropout, cached);
    const Normalised attended = Norm(
        block.ln_2, AddProjection(in.x, mixed, block.attn_proj, c_fc, dropout, DropoutSite::kAttentionOutput), sink);
    at::Tensor hidden = tensor_group_ != nullptr
                            ? ColumnLinear(attended.y, {c_fc}, *tensor_group_)[0]
                            : AdaptedLinear(attended.y, c_fc, block.c_fc.adapter, dropout.adapters);
    return AddProjection(attended.x, Gelu(hidden, gelu_adds_bias ? block.c_fc.bias : NumberedTensor(), sink),
                         block.mlp_proj, c_fc, dropout, DropoutSite::kMlpOutput);
  }

  // Attention over the normalised input, before attention's last projection. `args`: the arguments of another product
  // of the block; weight and bias are replaced.
  at::Tensor Mix(const Block& block, const at::Tensor& x, const LinearArgs& args, const at::Tensor& starts,
                 const Gpt2Dropout& dropout, const CachedLayer& cached) const {
    std::vector<LinearArgs> projections;
    for (const Gpt2Projection& each : block.c_attn) {
      LinearArgs& added = projections.emplace_back(args);
      added.weight = each.weight;
      added.bias = each.bias;
    }
    if (tensor_group_ != nullptr) {
      const std::vector<at::Tensor> parts = ColumnLinear(x, projections, *tensor_group_);
      if (dropout.model.rate > 0) {
        return CausalAttention(at::cat(parts, /*dim=*/-1), local_heads_,
                               {.dropout = dropout.model, .first_head = part_.tensor_rank * local_heads_}, starts);
      }
      return GroupedAttention(parts[0], parts[1], parts[2], local_heads_, local_heads_, starts);
    }
    const at::Tensor qkv = AdaptedLinear(x, projections[0], block.c_attn[0].adapter, dropout.adapters);
    if (cached.pass != nullptr) return Attend(cached, qkv);
    return CausalAttention(qkv, sizes_.heads, {dropout.model}, starts);
  }

  at::Tensor Attend(const CachedLayer& cached, const at::Tensor& qkv) const {
    const std::vector<at::Tensor> parts = qkv.split(sizes_.width, /*dim=*/-1);
    return cached.pass->Attend(cached.number, parts[0], parts[1], parts[2], sizes_.heads, /*window=*/0);
  }

  // Adds a projection of x to `residual`. `args`: the arguments of another product of the block; the weight and what
  // depends on it are replaced.
  at::Tensor AddProjection(const at::Tensor& residual, const at::Tensor& x, const Gpt2Projection& projection,
                           LinearArgs args, const Gpt2Dropout& dropout, DropoutSite site) const {
    args.weight = projection.weight;
    args.bias = projection.bias;
    args.group = tensor_group_;
    if (dropout.model.rate > 0) {
      const SampleSlice slice = args.part.has_value() ? SliceOf(*args.part, sizes_.width) : SampleSlice();
      return residual + Drop(AdaptedLinear(x, args, projection.adapter, dropout.adapters), dropout.model, site, slice);
    }
    args.residual = residual;
    return AdaptedLinear(x, args, projection.adapter, dropout.adapters);
  }
  static Normalised Norm(const Pair& norm, const at::Tensor& x, GradientSink* sink) {
    return LayerNorm(x, norm.weight, norm.bias, kLayerNormEps, sink);
  }
  Gpt2Dropout DropoutOfUnit(const std::optional<DropoutKey>& key, int unit) const {
    return {.model = DropoutOf(key, unit, sizes_.dropout), .adapters = DropoutOf(key, unit, sizes_.lora.dropout)};
  }

  NumberedTensor Next(int& next) const {
    const int number = next++;
    return {parameters_[static_cast<size_t>(number)].tensor, number};
  }
  Pair NextPair(int& next) const {
    const NumberedTensor weight = Next(next);
    return {.weight = weight, .bias = Next(next)};
  }
  // The weights of the fused projection come before its biases.
  std::vector<Gpt2Projection> NextProjections(int& next) const {
    std::vector<Gpt2Projection> projections(part_.tensor_size > 1 ? 3 : 1);
    for (Gpt2Projection& projection : projections) projection.weight = Next(next);
    for (Gpt2Projection& projection : projections) projection.bias = Next(next);
    return projections;
  }

  const ModelSizes sizes_;
  TensorGroup* const tensor_group_;  // null: this rank has the matrices whole
  const int64_t local_heads_;        // the heads of this tensor rank
  NumberedTensor wte_, wpe_;         // undefined: another part has it
  Pair ln_f_;
  std::vector<Block> blocks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> NewGpt2(const ModelSizes& sizes, const ModelPart& part, uint64_t seed,
                                               at::ScalarType type, TensorGroup* tensor_group) {
  RETURN_IF_ERROR(CheckSizes(sizes));
  return std::make_unique<Gpt2>(DescribeGpt2(sizes), part, seed, type, tensor_group);
}

}  // namespace trainyard
