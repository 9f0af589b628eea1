// The operations of the Llama graph against plain formulas of LibTorch in fp64, with gradients.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "tests/unit/model/gradients.h"
#include "worker/model/ops/attention.h"
#include "worker/model/ops/linear.h"
#include "worker/model/ops/rms_norm.h"
#include "worker/model/ops/rotary.h"
#include "worker/model/ops/swiglu.h"
#include "worker/model/product_tape.h"

namespace trainyard {
namespace {

class LlamaOpsTest : public testing::Test {
 protected:
  LlamaOpsTest() { at::manual_seed(11); }
  ~LlamaOpsTest() override { at::set_num_threads(1); }
};

at::Tensor PlainRmsNorm(const at::Tensor& x, const at::Tensor& weight) {
  return x / (x.square().mean(-1, true) + 1e-5).sqrt() * weight;
}

TEST_F(LlamaOpsTest, RmsNorm_MatchesTheFormula_WithAndWithoutASink_ForAnyNumberOfThreads) {
  for (int columns : {1, 2, 15, 16, 20, 100, 384}) {
    const at::Tensor x = at::randn({3, 50, columns}) * 2 + 1, w = at::randn({columns});
    const at::Tensor weights = at::randn({3, 50, columns});
    at::Tensor dx = Leaf(x.to(at::kDouble)), dw = Leaf(w.to(at::kDouble));
    const auto exact = NormWithGradients({dx, PlainRmsNorm(dx, dw)}, weights, {dx, dw});
    const auto run = [&](at::ScalarType type, GradientSink* sink) {
      at::Tensor lx = Leaf(x.to(type)), lw = Leaf(w.to(type));
      return NormWithGradients(RmsNorm(lx, {lw, 0}, 1e-5, sink), weights, {lx, lw});
    };
    const auto wide = run(at::kDouble, nullptr);
    for (size_t i = 0; i < exact.size(); ++i) EXPECT_LT(RelativeDifference(wide[i], exact[i]), 1e-14);

    for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const double tolerance = type == at::kFloat ? 3e-6 : 3e-2;
      at::set_num_threads(1);
      const auto own = run(type, nullptr);
      at::set_num_threads(2);
      CollectingSink collector({at::zeros({columns})});
      const auto with_sink = run(type, &collector);
      for (size_t i = 0; i < exact.size(); ++i) {
        EXPECT_LT(RelativeDifference(own[i], exact[i]), tolerance)
            << columns << " columns, " << type << ", tensor " << i;
        if (i >= 2) continue;
        EXPECT_TRUE(with_sink[i].equal(own[i])) << columns << " columns, " << type << ", tensor " << i;
      }
      EXPECT_FALSE(with_sink[2].defined()) << "the gradient was delivered twice";
      EXPECT_EQ(collector.done(), (std::vector<int>{1}));
      EXPECT_LT(RelativeDifference(collector.Claim(0).tensor, exact[2]), tolerance);
    }
  }
}

TEST_F(LlamaOpsTest, RmsNormInBfloat16_RoundsBeforeTheProductWithTheWeight) {
  const at::Tensor x = at::randn({40, 48}).to(at::kBFloat16), w = at::randn({48}).to(at::kBFloat16);
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normal = (wide * (wide.square().mean(-1, true) + 1e-5).rsqrt()).to(at::kBFloat16);

  const at::Tensor y = RmsNorm(x, {w, 0}, 1e-5).y;

  // A sum in another order may round an element the other way.
  EXPECT_LE(y.ne(normal * w).sum().item<int64_t>(), 2);
}

TEST_F(LlamaOpsTest, RmsNorm_IsTheSameWithAndWithoutGradients_AndPropagatesNaN) {
  at::Tensor x = at::randn({40, 48}), w = at::randn({48});
  const at::Tensor with_gradients = RmsNorm(Leaf(x), {w, 0}, 1e-5).y.detach();
  c10::NoGradGuard no_grad;
  EXPECT_TRUE(RmsNorm(x, {w, 0}, 1e-5).y.equal(with_gradients));

  x[3][5] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor with_nan = RmsNorm(x, {w, 0}, 1e-5).y;
  EXPECT_TRUE(with_nan[3].isnan().all().item<bool>());
  EXPECT_TRUE(with_nan[4].equal(with_gradients[4]));
}

TEST_F(LlamaOpsTest, RmsNormOfAFrozenWeight_IgnoresTheSink) {
  at::Tensor x = Leaf(at::randn({4, 16})), w = at::randn({16});
  CollectingSink collector({at::zeros({16})});

  RmsNorm(x, {w, 0}, 1e-5, &collector).y.sum().backward();

  EXPECT_TRUE(x.grad().defined());
  EXPECT_EQ(collector.done(), (std::vector<int>{0}));
}

TEST_F(LlamaOpsTest, SwiGlu_MatchesTheFormula_ForAnyNumberOfThreads) {
  for (int columns : {1, 15, 16, 100, 4096}) {
    const at::Tensor gate = at::randn({2, 9, columns}) * 3, up = at::randn({2, 9, columns});
    const at::Tensor weights = at::randn({2, 9, columns});
    at::Tensor dg = Leaf(gate.to(at::kDouble)), du = Leaf(up.to(at::kDouble));
    const auto exact = WithGradients(dg / (1 + (-dg).exp()) * du, weights, {dg, du});
    const auto run = [&](at::ScalarType type) {
      at::Tensor lg = Leaf(gate.to(type)), lu = Leaf(up.to(type));
      return WithGradients(SwiGlu(lg, lu), weights, {lg, lu});
    };
    const auto wide = run(at::kDouble);
    for (size_t i = 0; i < exact.size(); ++i) EXPECT_LT(RelativeDifference(wide[i], exact[i]), 1e-14);
    for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      at::set_num_threads(1);
      const auto own = run(type);
      at::set_num_threads(2);
      const auto threaded = run(type);
      for (size_t i = 0; i < exact.size(); ++i) {
        EXPECT_LT(RelativeDifference(own[i], exact[i]), type == at::kFloat ? 2e-6 : 3e-2)
            << columns << " columns, " << type;
        EXPECT_TRUE(threaded[i].equal(own[i])) << columns << " columns, " << type;
      }
    }
  }
}

TEST_F(LlamaOpsTest, SwiGluOfLargeGates_IsTheGateTimesUp_AndZeroForVeryNegativeOnes) {
  const at::Tensor up = at::full({3}, 2.0f);
  for (float far : {100.0f, 1e10f, 3e38f}) {
    EXPECT_EQ(SwiGlu(at::full({3}, far / 4), up).max().item<float>(), far / 2);
    EXPECT_EQ(SwiGlu(at::full({3}, -far), up).min().item<float>(), 0);
  }
  EXPECT_TRUE(SwiGlu(at::full({3}, std::numeric_limits<float>::quiet_NaN()), up).isnan().all().item<bool>());
}

Rope LlamaRope(Rope::Scaling scaling) {
  return {.theta = 500000, .scaling = scaling, .factor = 8, .original_context = 64};
}

// Plain rotation of x [sequences, tokens, heads, width] by fp32 angles.
at::Tensor PlainRotation(const at::Tensor& x, const Rope& rope, double sign = 1) {
  const int64_t width = x.size(-1), half = width / 2;
  at::Tensor y = x.clone();
  const at::Tensor frequencies = RotaryFrequencies(rope, width);
  for (int64_t token = 0; token < x.size(1); ++token) {
    const at::Tensor angles = frequencies * static_cast<float>(token);
    const at::Tensor c = angles.cos().to(x.scalar_type()), s = angles.sin().to(x.scalar_type()) * sign;
    const at::Tensor row = x.select(1, token), a = row.narrow(-1, 0, half), b = row.narrow(-1, half, half);
    y.select(1, token).copy_(at::cat({a * c - b * s, b * c + a * s}, -1));
  }
  return y;
}

TEST_F(LlamaOpsTest, Rotate_MatchesTheFormula_ForAnyNumberOfThreads) {
  for (Rope::Scaling scaling : {Rope::Scaling::kNone, Rope::Scaling::kLinear, Rope::Scaling::kLlama3}) {
    const Rope rope = LlamaRope(scaling);
    for (const auto& [heads, width] : {std::pair{1, 2}, {3, 6}, {2, 32}, {5, 34}, {2, 64}}) {
      const at::Tensor x = at::randn({2, 130, heads * width}), weights = at::randn({2, 130, heads * width});
      const at::Tensor by_heads = x.to(at::kDouble).view({2, 130, heads, width});
      const at::Tensor y = PlainRotation(by_heads, rope).view(x.sizes());
      const at::Tensor gradient =
          PlainRotation(weights.to(at::kDouble).view({2, 130, heads, width}), rope, -1).view(x.sizes());
      for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
        const RotaryTable table = MakeRotaryTable(rope, width, 150, at::TensorOptions(type));
        const auto run = [&](int threads) {
          at::set_num_threads(threads);
          at::Tensor leaf = Leaf(x.to(type));
          return WithGradients(Rotate(leaf, table), weights, {leaf});
        };
        const auto own = run(1), threaded = run(2);
        const double tolerance = type == at::kDouble ? 1e-14 : type == at::kFloat ? 1e-6 : 2e-2;
        EXPECT_LT(RelativeDifference(own[0], y), tolerance) << heads << " heads of width " << width << ", " << type;
        EXPECT_LT(RelativeDifference(own[1], gradient), tolerance)
            << heads << " heads of width " << width << ", " << type;
        EXPECT_TRUE(own[0].equal(threaded[0]) && own[1].equal(threaded[1]));
      }
    }
  }
}

TEST_F(LlamaOpsTest, FrequenciesOfLlama3_KeepShortWaves_StretchLongOnes_AndInterpolateBetween) {
  const Rope rope = LlamaRope(Rope::Scaling::kLlama3);  // 64 tokens: waves below 16 are short, above 64 long
  const at::Tensor plain = RotaryFrequencies(LlamaRope(Rope::Scaling::kNone), 64), scaled = RotaryFrequencies(rope, 64);
  int kept = 0, stretched = 0, between = 0;
  for (int64_t i = 0; i < 32; ++i) {
    const float before = plain[i].item<float>(), after = scaled[i].item<float>();
    const double wave = 2 * M_PI / before;
    if (wave < 16) {
      EXPECT_EQ(after, before);
      ++kept;
    } else if (wave > 64) {
      EXPECT_EQ(after, before / 8);
      ++stretched;
    } else {
      EXPECT_LE(after, before);
      EXPECT_GE(after, before / 8);
      ++between;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(stretched, 0);
  EXPECT_GT(between, 0);
}

// The parameters are sequences, tokens, heads, heads of keys, and the width of a head.
class GroupedAttentionTest : public LlamaOpsTest, public testing::WithParamInterface<std::array<int, 5>> {};

// Attention in which the keys and values are repeated for every head, in fp64.
at::Tensor PlainAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int heads, int kv_heads) {
  const auto by_heads = [](const at::Tensor& x, int count) {
    return x.view({x.size(0), x.size(1), count, -1}).transpose(1, 2);
  };
  const int64_t depth = q.size(2) / heads, tokens = q.size(1);
  const at::Tensor keys = by_heads(k, kv_heads).repeat_interleave(heads / kv_heads, 1);
  const at::Tensor values = by_heads(v, kv_heads).repeat_interleave(heads / kv_heads, 1);
  at::Tensor scores = at::matmul(by_heads(q, heads), keys.transpose(-2, -1)) / std::sqrt(static_cast<double>(depth));
  const at::Tensor future = at::full({tokens, tokens}, 1, at::kBool).triu(1);
  return at::matmul(scores.masked_fill(future, -INFINITY).softmax(-1), values).transpose(1, 2).reshape(q.sizes());
}

TEST_P(GroupedAttentionTest, MatchesTheFormula_ForAnyNumberOfThreads) {
  const auto [sequences, tokens, heads, kv_heads, depth] = GetParam();
  const at::Tensor q = at::randn({sequences, tokens, heads * depth}),
                   k = at::randn({sequences, tokens, kv_heads * depth}),
                   v = at::randn({sequences, tokens, kv_heads * depth}), weights = at::randn(q.sizes());
  at::Tensor dq = Leaf(q.to(at::kDouble)), dk = Leaf(k.to(at::kDouble)), dv = Leaf(v.to(at::kDouble));
  const auto exact = WithGradients(PlainAttention(dq, dk, dv, heads, kv_heads), weights, {dq, dk, dv});
  const auto run = [&, heads = heads, kv_heads = kv_heads](AttentionKernel kernel, at::ScalarType type, int threads) {
    at::set_num_threads(threads);
    at::Tensor lq = Leaf(q.to(type)), lk = Leaf(k.to(type)), lv = Leaf(v.to(type));
    return WithGradients(GroupedAttentionBy(kernel, lq, lk, lv, heads, kv_heads), weights, {lq, lk, lv});
  };
  const auto wide = run(AttentionKernel::kLibTorch, at::kDouble, 1);
  const auto own = run(AttentionKernel::kOwn, at::kFloat, 1), threaded = run(AttentionKernel::kOwn, at::kFloat, 2);
  const auto half = run(AttentionKernel::kOwn, at::kBFloat16, 2);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_LT(RelativeDifference(wide[i], exact[i]), 1e-13) << "tensor " << i;
    EXPECT_LT(RelativeDifference(own[i], exact[i]), 3e-6) << "tensor " << i;
    EXPECT_TRUE(threaded[i].equal(own[i])) << "tensor " << i;
    EXPECT_LT(RelativeDifference(half[i], exact[i]), 3e-2) << "tensor " << i << " in bf16";
  }
}

INSTANTIATE_TEST_SUITE_P(OddSizes, GroupedAttentionTest,
                         testing::Values(std::array{1, 1, 1, 1, 2}, std::array{2, 7, 3, 1, 6},
                                         std::array{1, 63, 4, 2, 16}, std::array{3, 64, 6, 2, 32},
                                         std::array{2, 65, 3, 3, 18}, std::array{1, 200, 8, 2, 64}));

TEST_F(LlamaOpsTest, GroupedAttentionOfOneHeadPerGroup_HasTheBitsOfFusedAttention) {
  const at::Tensor qkv = at::randn({2, 70, 3 * 24});
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> parts = qkv.to(type).split(24, -1);
    EXPECT_TRUE(GroupedAttentionBy(AttentionKernel::kOwn, parts[0], parts[1], parts[2], 3, 3)
                    .equal(CausalAttentionBy(AttentionKernel::kOwn, qkv.to(type), 3)));
  }
}

// The parameters are rows, inputs and outputs.
class TransposedWeightTest : public LlamaOpsTest, public testing::WithParamInterface<std::tuple<int, int, int>> {};

TEST_P(TransposedWeightTest, LinearMatchesTheFormula_WithAndWithoutASink) {
  const auto [rows, in, out] = GetParam();
  const at::Tensor x = at::randn({rows, in}), w = at::randn({out, in}), b = at::randn({out}),
                   r = at::randn({rows, out});
  const at::Tensor weights = at::randn({rows, out});
  at::Tensor dx = Leaf(x.to(at::kDouble)), dr = Leaf(r.to(at::kDouble)), dw = Leaf(w.to(at::kDouble)),
             db = Leaf(b.to(at::kDouble));
  const auto exact = WithGradients(at::matmul(dx, dw.t()) + db + dr, weights, {dx, dr, dw, db});
  const auto run = [&](at::ScalarType type, GradientSink* sink) {
    at::Tensor lx = Leaf(x.to(type)), lr = Leaf(r.to(type)), lw = Leaf(w.to(type)), lb = Leaf(b.to(type));
    at::Tensor y = Linear(lx, {.weight = {lw, 0}, .transposed = true, .bias = {lb, 1}, .residual = lr, .sink = sink});
    return WithGradients(y, weights, {lx, lr, lw, lb});
  };
  for (int threads : {1, 2}) {
    at::set_num_threads(threads);
    for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const double tolerance = type == at::kDouble ? 1e-13 : type == at::kFloat ? 3e-6 : 3e-2;
      const at::ScalarType sum_type = type == at::kDouble ? at::kDouble : at::kFloat;
      CollectingSink twice({at::full({out, in}, 5.0, sum_type), at::full({out}, 5.0, sum_type)});
      const auto own = run(type, nullptr);
      run(type, &twice);
      const auto with_sink = run(type, &twice);
      for (size_t i = 0; i < exact.size(); ++i) {
        EXPECT_LT(RelativeDifference(own[i], exact[i]), tolerance) << type << ", tensor " << i;
        if (i >= 3) continue;
        EXPECT_TRUE(with_sink[i].equal(own[i])) << type << ", tensor " << i;
      }
      EXPECT_FALSE(with_sink[3].defined() || with_sink[4].defined()) << "a gradient was delivered twice";
      EXPECT_EQ(twice.done(), (std::vector<int>{2, 2}));
      for (int i : {0, 1}) EXPECT_LT(RelativeDifference(twice.Claim(i).tensor, exact[3 + i] * 2), tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OddSizes, TransposedWeightTest,
                         testing::Values(std::make_tuple(1, 1, 1), std::make_tuple(5, 3, 7),
                                         std::make_tuple(300, 17, 33), std::make_tuple(513, 64, 48)));

TEST_F(LlamaOpsTest, LinearWithATransposedWeight_IsReplayedFromATape_WithTheSameGradients) {
  const at::Tensor x = at::randn({30, 17}), w = at::randn({33, 17}), weights = at::randn({30, 33});
  const auto run = [&](ProductTape* tape) {
    at::Tensor lx = Leaf(x), lw = Leaf(w);
    return WithGradients(Linear(lx, {.weight = {lw, 0}, .transposed = true, .tape = tape}), weights, {lx, lw});
  };
  ProductTape tape;
  {
    c10::NoGradGuard no_grad;
    Linear(x, {.weight = {w, 0}, .transposed = true, .tape = &tape});
  }
  tape.Rewind();
  const auto computed = run(nullptr), replayed = run(&tape);
  for (size_t i = 0; i < computed.size(); ++i) EXPECT_TRUE(replayed[i].equal(computed[i])) << "tensor " << i;
}

}  // namespace
}  // namespace trainyard
