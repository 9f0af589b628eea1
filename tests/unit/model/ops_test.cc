#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "tests/unit/model/gradients.h"
#include "worker/model/ops/attention.h"
#include "worker/model/ops/gelu.h"
#include "worker/model/ops/layer_norm.h"
#include "worker/model/ops/linear.h"
#include "worker/model/ops/products.h"
#include "worker/numerics/gemm.h"

namespace trainyard {
namespace {

class OpsTest : public testing::Test {
 protected:
  OpsTest() { at::manual_seed(7); }
  ~OpsTest() override { at::set_num_threads(1); }
};

constexpr std::pair<at::ScalarType, double> kTolerances[] = {
    {at::kFloat, 3e-6}, {at::kBFloat16, 3e-2}, {at::kHalf, 4e-3}};

// The parameters are sequences, tokens, heads, and the width of a head.
class AttentionTest : public OpsTest, public testing::WithParamInterface<std::tuple<int, int, int, int>> {
 protected:
  std::vector<at::Tensor> Run(AttentionKernel kernel, const at::Tensor& qkv, int64_t heads, const at::Tensor& weights) {
    at::Tensor leaf = Leaf(qkv);
    return WithGradients(CausalAttentionBy(kernel, leaf, heads), weights, {leaf});
  }
};

TEST_P(AttentionTest, MatchesLibTorch) {
  const auto [sequences, tokens, heads, depth] = GetParam();
  at::Tensor qkv = at::randn({sequences, tokens, 3 * heads * depth}),
             weights = at::randn({sequences, tokens, heads * depth});
  const auto exact = Run(AttentionKernel::kLibTorch, qkv.to(at::kDouble), heads, weights);

  for (int threads : {1, 2}) {
    at::set_num_threads(threads);
    for (const auto& [type, tolerance] : kTolerances) {
      const auto own = Run(AttentionKernel::kOwn, qkv.to(type), heads, weights);
      for (size_t i = 0; i < exact.size(); ++i) {
        EXPECT_LT(RelativeDifference(own[i], exact[i]), tolerance)
            << "tensor " << i << " in " << type << ", " << threads << " threads";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OddSizes, AttentionTest,
                         testing::Values(std::make_tuple(1, 1, 1, 1), std::make_tuple(2, 7, 3, 5),
                                         std::make_tuple(1, 63, 2, 16), std::make_tuple(3, 64, 1, 32),
                                         std::make_tuple(2, 65, 2, 17), std::make_tuple(1, 200, 2, 64)));

TEST_F(OpsTest, Attention_IsTheSameWithAndWithoutGradients_AndForAnyNumberOfThreads) {
  at::Tensor qkv = at::randn({2, 70, 3 * 24});
  at::Tensor with_gradients = CausalAttention(Leaf(qkv), 3).detach();

  c10::NoGradGuard no_grad;
  EXPECT_TRUE(with_gradients.equal(CausalAttention(qkv, 3)));
  at::set_num_threads(2);
  EXPECT_TRUE(with_gradients.equal(CausalAttention(qkv, 3)));
}

TEST_F(OpsTest, Attention_PropagatesNaNToLaterBlocksOnly) {
  at::Tensor qkv = at::randn({1, 70, 3 * 16});
  qkv[0][66].fill_(std::numeric_limits<float>::quiet_NaN());

  at::Tensor out = CausalAttention(qkv, 1)[0];

  EXPECT_TRUE(out.narrow(0, 0, 64).isfinite().all().item<bool>());
  EXPECT_TRUE(out.narrow(0, 66, 4).isnan().all().item<bool>());
}

TEST_F(OpsTest, Attention_OfLargeScores_IsFinite) {
  at::Tensor qkv = at::randn({1, 40, 3 * 16}) * 300;
  at::Tensor exact = CausalAttentionBy(AttentionKernel::kLibTorch, qkv.to(at::kDouble), 1);
  EXPECT_LT(RelativeDifference(CausalAttention(qkv, 1), exact), 1e-3);
}

// The parameters are rows, inputs and outputs.
class LinearTest : public OpsTest, public testing::WithParamInterface<std::tuple<int, int, int>> {};

TEST_P(LinearTest, MatchesLibTorch_WithAndWithoutASink) {
  const auto [rows, in, out] = GetParam();
  at::Tensor x = at::randn({rows, in}), w = at::randn({in, out}), b = at::randn({out}), r = at::randn({rows, out});
  at::Tensor weights = at::randn({rows, out});
  auto run = [&](at::ScalarType type, GradientSink* sink) {
    at::Tensor lx = Leaf(x.to(type)), lw = Leaf(w.to(type)), lb = Leaf(b.to(type)), lr = Leaf(r.to(type));
    at::Tensor y = Linear(lx, {.weight = {lw, 0}, .bias = {lb, 1}, .residual = lr, .sink = sink});
    return WithGradients(y, weights, {lx, lr, lw, lb});
  };
  const auto exact = run(at::kDouble, nullptr);

  for (int threads : {1, 2}) {
    at::set_num_threads(threads);
    for (const auto& [type, tolerance] : kTolerances) {
      CollectingSink collector({at::zeros({in, out}), at::zeros({out})});
      const auto own = run(type, nullptr), with_sink = run(type, &collector);
      CollectingSink twice({at::full({in, out}, 5.0), at::full({out}, 5.0)});
      run(type, &twice);
      run(type, &twice);
      for (size_t i = 0; i < exact.size(); ++i) {
        EXPECT_LT(RelativeDifference(own[i], exact[i]), tolerance) << type << ", tensor " << i;
        if (i >= 3) continue;
        EXPECT_TRUE(with_sink[i].equal(own[i])) << type << ", tensor " << i;
      }
      EXPECT_FALSE(with_sink[3].defined() || with_sink[4].defined()) << "a gradient was delivered twice";
      EXPECT_EQ(collector.done(), (std::vector<int>{1, 1}));
      for (int i : {0, 1}) {
        EXPECT_LT(RelativeDifference(collector.Claim(i).tensor, exact[3 + i]), tolerance);
        EXPECT_LT(RelativeDifference(twice.Claim(i).tensor, exact[3 + i] * 2), tolerance)
            << "the first gradient is not overwritten";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OddSizes, LinearTest,
                         testing::Values(std::make_tuple(1, 1, 1), std::make_tuple(5, 3, 7),
                                         std::make_tuple(300, 17, 33), std::make_tuple(513, 64, 48)));

TEST_F(OpsTest, Linear_OfFrozenParameters_IgnoresTheSink) {
  at::Tensor x = Leaf(at::randn({4, 3})), w = at::randn({3, 2}), b = at::randn({2});
  CollectingSink collector({at::zeros({3, 2}), at::zeros({2})});

  Linear(x, {.weight = {w, 0}, .bias = {b, 1}, .sink = &collector}).sum().backward();

  EXPECT_TRUE(x.grad().defined());
  EXPECT_EQ(collector.done(), (std::vector<int>{0, 0}));
}

TEST_F(OpsTest, Head_MatchesLibTorch) {
  at::Tensor x = at::randn({300, 17}), w = at::randn({33, 17}), weights = at::randn({300, 33});
  auto run = [&](at::ScalarType type) {
    at::Tensor lx = Leaf(x.to(type)), lw = Leaf(w.to(type));
    return WithGradients(TransposedLinear(lx, lw), weights, {lx, lw});
  };
  const auto exact = run(at::kDouble);

  for (const auto& [type, tolerance] : kTolerances) {
    const auto found = run(type);
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_LT(RelativeDifference(found[i], exact[i]), tolerance) << "tensor " << i << " in " << type;
    }
  }
}

// A CPU without 16-bit instructions multiplies 16-bit factors as fp32, and rounds each result once.
TEST_F(OpsTest, WidenedProduct_IsTheProductOfTheSameNumbersRoundedOnce) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    if (!IsSlowInLibTorch(type)) continue;  // it is not widened
    const at::Tensor x = at::randn({90, 600}).to(type), w = at::randn({600, 50}).to(type);
    const at::Tensor residual = at::randn({90, 50}).to(type), bias = at::randn({50}).to(type);
    const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };

    const at::Tensor rounded = Product(x, w, /*transposed=*/false, bias, residual);

    const at::Tensor exact = at::matmul(wide(x), wide(w)) + wide(bias) + wide(residual);
    const double half_a_step = type == at::kHalf ? 0x1p-11 : 0x1p-8;
    const at::Tensor error = (wide(rounded) - exact).abs() - exact.abs() * half_a_step;
    EXPECT_LT(error.max().item<double>(), 1e-4) << type;  // the error of the fp32 sums
  }
}

TEST_F(OpsTest, Bfloat16WeightGradients_AreAddedInTheSink) {
  at::Tensor x = at::randn({300, 17}), w = at::randn({17, 33}), weights = at::randn({300, 33});
  auto run = [&](at::ScalarType type, GradientSink* sink) {
    at::Tensor lx = Leaf(x.to(type)), lw = Leaf(w.to(type));
    return WithGradients(Linear(lx, {.weight = {lw, 0}, .sink = sink}), weights, {lw});
  };
  CollectingSink collector({at::full({17, 33}, 5.0, at::kBFloat16)});
  run(at::kBFloat16, &collector);
  run(at::kBFloat16, &collector);

  EXPECT_LT(RelativeDifference(collector.Claim(0).tensor, run(at::kDouble, nullptr)[1] * 2), 3e-2);
}

TEST_F(OpsTest, GeluWithBias_MatchesLibTorch) {
  for (int columns : {1, 15, 16, 100}) {
    at::Tensor x = at::randn({2, 9, columns}) * 2, b = at::randn({columns}), weights = at::randn({2, 9, columns});
    at::Tensor dx = Leaf(x.to(at::kDouble)), db = Leaf(b.to(at::kDouble));
    const auto exact = WithGradients(at::gelu(dx + db, "tanh"), weights, {dx, db});

    for (int threads : {1, 2}) {
      at::set_num_threads(threads);
      for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        at::Tensor lx = Leaf(x.to(type)), lb = Leaf(b.to(type));
        const auto own = WithGradients(Gelu(lx, {lb, 0}), weights, {lx, lb});
        for (size_t i = 0; i < exact.size(); ++i) {
          EXPECT_LT(RelativeDifference(own[i], exact[i]), type == at::kFloat ? 2e-6 : 8e-2)
              << columns << " columns, " << type << ", tensor " << i;
        }
      }
    }
  }
}

TEST_F(OpsTest, LayerNorm_MatchesLibTorch_WithAndWithoutASink_ForAnyNumberOfThreads) {
  for (int columns : {2, 15, 16, 20, 100, 384}) {
    const at::Tensor x = at::randn({3, 50, columns}) * 2 + 1, w = at::randn({columns}), b = at::randn({columns});
    const at::Tensor weights = at::randn({3, 50, columns});
    const auto run = [&](at::ScalarType type, GradientSink* sink) {
      at::Tensor lx = Leaf(x.to(type)), lw = Leaf(w.to(type)), lb = Leaf(b.to(type));
      return NormWithGradients(LayerNorm(lx, {lw, 0}, {lb, 1}, 1e-5, sink), weights, {lx, lw, lb});
    };
    at::Tensor dx = Leaf(x.to(at::kDouble)), dw = Leaf(w.to(at::kDouble)), db = Leaf(b.to(at::kDouble));
    const auto exact = NormWithGradients({dx, at::layer_norm(dx, {columns}, dw, db, 1e-5)}, weights, {dx, dw, db});
    const auto wide = run(at::kDouble, nullptr);
    for (size_t i = 0; i < exact.size(); ++i) EXPECT_TRUE(wide[i].equal(exact[i])) << "fp64 uses LibTorch";

    for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      at::set_num_threads(1);
      const auto own = run(type, nullptr);
      at::Tensor tx = Leaf(x.to(type)), tw = Leaf(w.to(type)), tb = Leaf(b.to(type));
      const auto theirs = NormWithGradients({tx, at::layer_norm(tx, {columns}, tw, tb, 1e-5)}, weights, {tx, tw, tb});
      at::set_num_threads(2);
      CollectingSink collector({at::zeros({columns}), at::zeros({columns})});
      const auto with_sink = run(type, &collector);
      for (size_t i = 0; i < exact.size(); ++i) {
        // On rows of two nearly equal values, the errors of all kernels exceed the fixed limit, those of LibTorch
        // too, so errors of up to twice LibTorch's are accepted.
        const double limit = std::max(type == at::kFloat ? 3e-6 : 3e-2, 2 * RelativeDifference(theirs[i], exact[i]));
        EXPECT_LT(RelativeDifference(own[i], exact[i]), limit) << columns << " columns, " << type << ", tensor " << i;
        if (i >= 2) continue;
        EXPECT_TRUE(with_sink[i].equal(own[i])) << type << ", tensor " << i;
      }
      EXPECT_FALSE(with_sink[2].defined() || with_sink[3].defined()) << "a gradient was delivered twice";
      EXPECT_EQ(collector.done(), (std::vector<int>{1, 1}));
      for (int i : {0, 1}) EXPECT_LT(RelativeDifference(collector.Claim(i).tensor, exact[2 + i]), 3e-2);
    }
  }
}

TEST_F(OpsTest, LayerNorm_IsTheSameWithAndWithoutGradients_AndPropagatesNaN) {
  at::Tensor x = at::randn({40, 48}), w = at::randn({48}), b = at::randn({48});
  const at::Tensor with_gradients = LayerNorm(Leaf(x), {w, 0}, {b, 1}, 1e-5).y.detach();
  c10::NoGradGuard no_grad;
  EXPECT_TRUE(LayerNorm(x, {w, 0}, {b, 1}, 1e-5).y.equal(with_gradients));

  x[3][5] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor with_nan = LayerNorm(x, {w, 0}, {b, 1}, 1e-5).y;
  EXPECT_TRUE(with_nan[3].isnan().all().item<bool>());
  EXPECT_TRUE(with_nan[4].equal(with_gradients[4]));
}

TEST_F(OpsTest, LayerNorm_OfFrozenParameters_ReturnsOnlyTheGradientOfX) {
  at::Tensor x = Leaf(at::randn({4, 16})), w = at::randn({16}), b = at::randn({16});
  CollectingSink collector({at::zeros({16}), at::zeros({16})});

  LayerNorm(x, {w, 0}, {b, 1}, 1e-5, &collector).y.sum().backward();

  EXPECT_TRUE(x.grad().defined());
  EXPECT_EQ(collector.done(), (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace trainyard
