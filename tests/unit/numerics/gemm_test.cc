// Compares the products of Gemm with LibTorch's in fp64, for every layout of the factors. The tests also run as on CPUs
// with fewer features (tests/CMakeLists.txt), where Gemm converts 16-bit factors to fp32 one tile at a time.
#include "worker/numerics/gemm.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "worker/numerics/cpu.h"

namespace trainyard {
namespace {

struct Sizes {
  int64_t m, n, k;
};

template <typename T>
void ExpectProducts(at::ScalarType type, const Sizes& size, double tolerance) {
  for (const bool transposed_a : {false, true}) {
    for (const bool transposed_b : {false, true}) {
      at::Tensor a = transposed_a ? at::randn({size.k, size.m}) : at::randn({size.m, size.k});
      at::Tensor b = transposed_b ? at::randn({size.n, size.k}) : at::randn({size.k, size.n});
      at::Tensor c = at::randn({size.m, size.n});
      a = a.to(type), b = b.to(type);
      const at::Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
      const at::Tensor expected =
          at::matmul(transposed_a ? wide_a.t() : wide_a, transposed_b ? wide_b.t() : wide_b) * 0.5 +
          c.to(at::kDouble) * 2;

      Gemm(size.m, size.n, size.k, 0.5f, {a.const_data_ptr<T>(), a.size(1), transposed_a},
           {b.const_data_ptr<T>(), b.size(1), transposed_b}, 2, c.mutable_data_ptr<float>(), size.n);

      EXPECT_LT((c.to(at::kDouble) - expected).abs().max().item<double>(), tolerance)
          << type << ", " << size.m << " x " << size.n << " x " << size.k;
    }
  }
}

TEST(Gemm, MultipliesEveryTypeInEveryLayout) {
  at::manual_seed(3);
  // Smaller than a tile of widened factors, and larger than one in each direction.
  for (const Sizes& size : {Sizes{1, 1, 1}, Sizes{3, 5, 7}, Sizes{70, 1100, 300}, Sizes{600, 40, 520}}) {
    ExpectProducts<float>(at::kFloat, size, 3e-4);
    ExpectProducts<c10::BFloat16>(at::kBFloat16, size, 3e-4);
    ExpectProducts<c10::Half>(at::kHalf, size, 3e-4);
  }
}

TEST(Gemm, BetaZero_DoesNotReadTheOldResult) {
  at::Tensor a = at::randn({2, 300}).to(at::kBFloat16), c = at::randn({2, 2}) / 0;

  Gemm(2, 2, 300, 1, {a.const_data_ptr<c10::BFloat16>(), 300}, {a.const_data_ptr<c10::BFloat16>(), 300, true}, 0,
       c.mutable_data_ptr<float>(), 2);

  EXPECT_TRUE(c.isfinite().all().item<bool>());
}

// LibTorch's own 16-bit products allocate memory from the system at every call if the CPU has no AVX-512.
TEST(HasGemm, IsTrueForSixteenBitTypesOnACpuWithoutAvx512) {
  const bool lacks_avx512 = BestVectorCode() != VectorCode::kAvx512;

  EXPECT_EQ(IsSlowInLibTorch(at::kBFloat16), lacks_avx512);
  EXPECT_TRUE(HasGemm(at::kBFloat16) || !lacks_avx512);
  EXPECT_EQ(IsSlowInLibTorch(at::kHalf), lacks_avx512);
  EXPECT_EQ(HasGemm(at::kHalf), lacks_avx512);
  EXPECT_FALSE(IsSlowInLibTorch(at::kFloat));
}

}  // namespace
}  // namespace trainyard
