#include "worker/model/gpt2.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "worker/model/ops/attention.h"
#include "worker/model/ops/gelu.h"
#include "worker/model/ops/layer_norm.h"
#include "worker/model/ops/linear.h"
#include "worker/model/product_tape.h"

namespace trainyard {
namespace {

constexpr double kInitDeviation = 0.02;
constexpr double kLayerNormEps = 1e-5;
constexpr int64_t kIgnored = -1;  // a target that counts for nothing

// splitmix64's finisher: spreads every bit of its input over the output.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
uint64_t Combine(uint64_t a, uint64_t b) { return Mix(Mix(a + 0x9e3779b97f4a7c15u) + b + 0x9e3779b97f4a7c15u); }

struct NormParameters {
  NumberedTensor weight, bias;
};
struct Projection {
  NumberedTensor weight, bias;  // weight is [in, out]
};
struct Block {
  NormParameters ln_1;
  Projection c_attn, attn_proj;
  NormParameters ln_2;
  Projection c_fc, mlp_proj;
};

enum class Start { kZeros, kOnes, kNormal };

// Each matrix has a generator of its own, and is drawn in fp32 on the CPU, whatever the type and the device.
void DrawInitial(Start start, uint64_t key, const at::Tensor& out) {
  if (start != Start::kNormal) {
    out.fill_(start == Start::kOnes ? 1 : 0);
    return;
  }
  const bool in_place = out.is_cpu() && out.scalar_type() == at::kFloat;
  at::Tensor values = in_place ? out : at::empty(out.sizes(), at::kFloat);
  values.normal_(0, kInitDeviation, at::detail::createCPUGenerator(key));
  if (!in_place) out.copy_(values);
}

class Gpt2 final : public Model {
 public:
  Gpt2(const Gpt2Config& config, uint64_t seed, at::ScalarType type) : config_(config), type_(type) {
    int64_t d = config.width;
    BeginUnit("root");
    wte_ = Matrix("wte.weight", config.vocabulary, d);
    wpe_ = Matrix("wpe.weight", config.context, d);
    ln_f_ = MakeNorm("ln_f");
    for (int64_t i = 0; i < config.layers; ++i) {
      std::string name = absl::StrCat("h.", i);
      BeginUnit(name);
      Block block;
      block.ln_1 = MakeNorm(name + ".ln_1");
      block.c_attn = MakeProjection(name + ".attn.c_attn", d, 3 * d);
      block.attn_proj = MakeProjection(name + ".attn.c_proj", d, d);
      block.ln_2 = MakeNorm(name + ".ln_2");
      block.c_fc = MakeProjection(name + ".mlp.c_fc", d, 4 * d);
      block.mlp_proj = MakeProjection(name + ".mlp.c_proj", 4 * d, d);
      blocks_.push_back(std::move(block));
    }
    for (NamedTensor& parameter : parameters_) parameter.tensor.requires_grad_(true);
    set_initial_values([seed, starts = std::move(starts_)](int parameter, const at::Tensor& out) {
      DrawInitial(starts[static_cast<size_t>(parameter)], Combine(seed, static_cast<uint64_t>(parameter)), out);
    });
  }

  at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& targets, UnitHooks& hooks,
                     std::optional<DropoutKey> dropout) override {
    Dropping drop = config_.dropout > 0 ? dropout : std::nullopt;
    at::Tensor scores = Scores(inputs, hooks, drop);
    return hooks.AfterRoot(at::cross_entropy_loss(scores, targets.reshape({-1}), {}, at::Reduction::Sum, kIgnored));
  }

  at::Tensor Logits(const at::Tensor& inputs, UnitHooks& hooks) override {
    at::Tensor scores = Scores(inputs, hooks, std::nullopt);
    return hooks.AfterRoot(scores.view({inputs.size(0), inputs.size(1), -1}));
  }

  bool FeedsUnits(int number) const override {
    return parameters_[number].tensor.is_same(wte_) || parameters_[number].tensor.is_same(wpe_);
  }

  // A block's parameters are numbered as BeginUnit meets them, an operation's weight before its bias.
  std::vector<int> ReadyOrder() const override {
    const int ln_f = 2;  // after wte and wpe
    std::vector<int> order = {ln_f, ln_f + 1};
    for (size_t unit = units_.size() - 1; unit > 0; --unit) {
      const int first = units_[unit].first_parameter;
      // mlp.c_proj, the bias of c_fc, which GELU adds, c_fc, ln_2, attn.c_proj, c_attn, ln_1
      for (int i : {10, 11, 9, 8, 6, 7, 4, 5, 2, 3, 0, 1}) order.push_back(first + i);
    }
    order.insert(order.end(), {0, 1});  // wte has the head's gradient first and its own here
    return order;
  }

  int64_t context() const override { return config_.context; }
  int64_t vocabulary() const override { return config_.vocabulary; }

 private:
  using Dropping = std::optional<DropoutKey>;  // unset: nothing is dropped

  // The scores of all positions, [sequences x tokens, vocabulary]. Leaves the root open: the loss belongs to it.
  at::Tensor Scores(const at::Tensor& inputs, UnitHooks& hooks, const Dropping& drop) {
    hooks.BeforeRoot();
    int64_t tokens = inputs.size(1);
    double p = StartDropout(drop, /*unit=*/0);
    at::Tensor x = Drop(at::embedding(wte_, inputs) + wpe_.narrow(0, 0, tokens), p);
    GradientSink* sink = hooks.sink();
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const int unit = static_cast<int>(i) + 1;
      x = hooks.RunUnit(unit, x, [this, i, unit, drop, sink](const at::Tensor& in, ProductTape* tape) {
        return Forward(blocks_[i], in, StartDropout(drop, unit), sink, tape);
      });
    }
    at::Tensor scores = TransposedLinear(Norm(ln_f_, x, sink).y.view({-1, config_.width}), wte_);
    return output_type_.has_value() ? scores.to(*output_type_) : scores;
  }

  at::Tensor Forward(const Block& block, const at::Tensor& x, double drop, GradientSink* sink,
                     ProductTape* tape) const {
    const Normalised in = Norm(block.ln_1, x, sink);
    at::Tensor qkv =
        Linear(in.y, {.weight = block.c_attn.weight, .bias = block.c_attn.bias, .sink = sink, .tape = tape});
    at::Tensor mixed = CausalAttention(qkv, config_.heads, drop);
    const Normalised attended = Norm(block.ln_2, AddProjection(in.x, mixed, block.attn_proj, drop, sink, tape), sink);
    at::Tensor hidden = Linear(attended.y, {.weight = block.c_fc.weight, .sink = sink, .tape = tape});
    return AddProjection(attended.x, Gelu(hidden, block.c_fc.bias, sink), block.mlp_proj, drop, sink, tape);
  }

  static at::Tensor AddProjection(const at::Tensor& residual, const at::Tensor& x, const Projection& p, double drop,
                                  GradientSink* sink, ProductTape* tape) {
    LinearArgs args{.weight = p.weight, .bias = p.bias, .sink = sink, .tape = tape};
    if (drop > 0) return residual + Drop(Linear(x, args), drop);
    args.residual = residual;
    return Linear(x, args);
  }
  static Normalised Norm(const NormParameters& norm, const at::Tensor& x, GradientSink* sink) {
    return LayerNorm(x, norm.weight, norm.bias, kLayerNormEps, sink);
  }
  static at::Tensor Drop(const at::Tensor& x, double drop) {
    return drop > 0 ? at::dropout(x, drop, /*train=*/true) : x;
  }

  // The share to drop in `unit`. Each unit draws from a start of its own, so that it draws the same when it is run
  // again. Attention draws from the process' default generator and cannot be given another, so it is that one that is
  // set.
  double StartDropout(const Dropping& drop, int unit) const {
    if (!drop.has_value()) return 0;
    at::Generator generator = at::globalContext().defaultGenerator(wte_.device());
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(
        Combine(Combine(Combine(drop->seed, drop->step), drop->micro_batch), static_cast<uint64_t>(unit)));
    return config_.dropout;
  }

  void BeginUnit(std::string name) {
    units_.push_back({.name = std::move(name), .first_parameter = static_cast<int>(parameters_.size())});
  }
  at::Tensor Add(std::string name, at::IntArrayRef sizes, Start start) {
    at::Tensor tensor = NewUnbacked(sizes, type_);
    parameters_.push_back({.name = std::move(name), .tensor = tensor});
    starts_.push_back(start);
    units_.back().num_parameters++;
    return tensor;
  }
  at::Tensor Matrix(std::string name, int64_t rows, int64_t columns) {
    return Add(std::move(name), {rows, columns}, Start::kNormal);
  }
  NormParameters MakeNorm(const std::string& name) {
    const int number = static_cast<int>(parameters_.size());
    at::Tensor weight = Add(name + ".weight", {config_.width}, Start::kOnes);
    return {.weight = {weight, number}, .bias = {Add(name + ".bias", {config_.width}, Start::kZeros), number + 1}};
  }
  Projection MakeProjection(const std::string& name, int64_t in, int64_t out) {
    const int number = static_cast<int>(parameters_.size());
    at::Tensor weight = Matrix(name + ".weight", in, out);
    return {.weight = {weight, number}, .bias = {Add(name + ".bias", {out}, Start::kZeros), number + 1}};
  }

  Gpt2Config config_;
  at::ScalarType type_;
  std::vector<Start> starts_;  // by parameter
  at::Tensor wte_, wpe_;
  NormParameters ln_f_;
  std::vector<Block> blocks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> NewGpt2(const Gpt2Config& config, uint64_t seed, at::ScalarType type,
                                               bool backed) {
  if (config.layers < 1 || config.heads < 1 || config.width < 1 || config.context < 1 || config.vocabulary < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a gpt2 model needs at least 1 of everything; found layers ",
                                                   config.layers, ", heads ", config.heads, ", width ", config.width,
                                                   ", context ", config.context, ", vocabulary ", config.vocabulary));
  }
  if (config.width % config.heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("heads must divide width: ", config.width, " / ", config.heads,
                                                   " leaves ", config.width % config.heads));
  }
  if (!(config.dropout >= 0 && config.dropout < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("dropout must be in [0, 1), found ", config.dropout));
  }
  auto model = std::make_unique<Gpt2>(config, seed, type);
  if (backed) model->Materialize();
  return model;
}

}  // namespace trainyard
