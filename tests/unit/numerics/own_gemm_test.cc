// Our own matrix product compared with LibTorch's in fp64, and its promises about bits. The tests also run as on CPUs with
// fewer features (tests/CMakeLists.txt).
#include "worker/numerics/own_gemm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "worker/numerics/element_bits.h"

namespace trainyard {
namespace {

struct Sizes {
  int64_t m, n, k;
};

template <typename T>
MatrixRef<T> Ref(const at::Tensor& matrix, bool transposed) {
  return {matrix.const_data_ptr<T>(), matrix.size(1), transposed};
}

template <typename T>
at::Tensor Multiply(const Sizes& size, const at::Tensor& a, bool transposed_a, const at::Tensor& b, bool transposed_b,
                    const at::Tensor& c, float alpha, float beta) {
  at::Tensor result = c.clone();
  OwnGemm(size.m, size.n, size.k, alpha, Ref<T>(a, transposed_a), Ref<T>(b, transposed_b), beta,
          result.mutable_data_ptr<float>(), size.n);
  return result;
}

template <typename T>
void ExpectProducts(at::ScalarType type, const Sizes& size) {
  for (const bool transposed_a : {false, true}) {
    for (const bool transposed_b : {false, true}) {
      at::Tensor a = transposed_a ? at::randn({size.k, size.m}) : at::randn({size.m, size.k});
      at::Tensor b = transposed_b ? at::randn({size.n, size.k}) : at::randn({size.k, size.n});
      const at::Tensor c = at::randn({size.m, size.n});
      a = a.to(type), b = b.to(type);
      const at::Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
      const at::Tensor product =
          at::matmul(transposed_a ? wide_a.t() : wide_a, transposed_b ? wide_b.t() : wide_b);

      const at::Tensor result = Multiply<T>(size, a, transposed_a, b, transposed_b, c, 0.5f, 2);

      EXPECT_LT((result.to(at::kDouble) - product * 0.5 - c.to(at::kDouble) * 2).abs().max().item<double>(), 3e-4)
          << type << ", " << size.m << " x " << size.n << " x " << size.k << ", " << transposed_a << transposed_b;
    }
  }
}

// Sizes below a tile, between tiles, and beyond every block: of rows, of depth, of columns, and of packed elements.
constexpr Sizes kSizes[] = {{1, 1, 1}, {3, 5, 7}, {14, 32, 16}, {85, 33, 513}, {7, 2400, 65}, {30, 1000, 3000}};

TEST(OwnGemm, MultipliesEveryTypeInEveryLayout) {
  at::manual_seed(3);
  for (const Sizes& size : kSizes) {
    ExpectProducts<float>(at::kFloat, size);
    ExpectProducts<c10::BFloat16>(at::kBFloat16, size);
    ExpectProducts<c10::Half>(at::kHalf, size);
  }
}

TEST(OwnGemm, BetaZero_DoesNotReadTheOldResult) {
  const at::Tensor a = at::randn({2, 300}), c = at::randn({2, 2}) / 0;

  const at::Tensor result = Multiply<float>({2, 2, 300}, a, false, a, true, c, 1, 0);

  EXPECT_TRUE(result.isfinite().all().item<bool>());
}

TEST(OwnGemm, BitsOfARow_DependNeitherOnOtherRowsNorOnThreads) {
  at::manual_seed(5);
  const at::Tensor a = at::randn({333, 700}), b = at::randn({700, 90}), zero = at::zeros({333, 90});
  const int threads = at::get_num_threads();

  at::set_num_threads(1);
  const at::Tensor one = Multiply<float>({333, 90, 700}, a, false, b, false, zero, 1, 0);
  at::set_num_threads(3);
  const at::Tensor three = Multiply<float>({333, 90, 700}, a, false, b, false, zero, 1, 0);
  const at::Tensor some = Multiply<float>({5, 90, 700}, a.narrow(0, 200, 5), false, b, false, zero.narrow(0, 0, 5), 1, 0);
  at::set_num_threads(threads);

  EXPECT_TRUE(one.equal(three));
  EXPECT_TRUE(one.narrow(0, 200, 5).equal(some));
}

TEST(OwnGemm, SumsForASink_AreThoseOfTheWholeProduct) {
  struct Copy final : SumSink {
    void Take(const SumBlock& block) const override {
      for (int64_t i = 0; i < block.rows; ++i) {
        for (int64_t j = 0; j < block.columns; ++j) {
          to[(block.first_row + i) * columns + block.first_column + j] += block.sums[i * block.row + j];
        }
      }
    }
    float* to;
    int64_t columns;
  };
  at::manual_seed(7);
  for (const Sizes& size : kSizes) {
    const at::Tensor a = at::randn({size.m, size.k}).to(at::kBFloat16), b = at::randn({size.k, size.n}).to(at::kBFloat16);
    const at::Tensor c = at::zeros({size.m, size.n}), taken = at::zeros({size.m, size.n});
    Copy sink;
    sink.to = taken.mutable_data_ptr<float>();
    sink.columns = size.n;

    OwnGemm(size.m, size.n, size.k, Ref<c10::BFloat16>(a, false), Ref<c10::BFloat16>(b, false), sink);

    EXPECT_TRUE(taken.equal(Multiply<c10::BFloat16>(size, a, false, b, false, c, 1, 0))) << size.m << " " << size.n;
  }
}

// Every fp16 number, and the numbers around the middle of each two neighbours.
TEST(HalfLanes, ConvertEveryNumberAsLibTorchDoes) {
  for (uint32_t first = 0; first < 0x10000; first += kLanes) {
    HalfBits bits[kLanes], back[kLanes];
    float wide[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) bits[i].bits = static_cast<uint16_t>(first + static_cast<uint32_t>(i));

    StoreLanes(LoadLanes(bits), wide);

    for (int64_t i = 0; i < kLanes; ++i) {
      const float expected = HalfToFloat(bits[i].bits);
      EXPECT_TRUE(wide[i] == expected || (std::isnan(wide[i]) && std::isnan(expected))) << bits[i].bits;
    }
    for (const int32_t offset : {0, 0xfff, 0x1000, 0x1001, 0x800, 0x1fff}) {
      float near[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        near[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(wide[i]) + static_cast<uint32_t>(offset));
      }
      StoreLanes(LoadLanes(near), back);
      for (int64_t i = 0; i < kLanes; ++i) {
        const uint16_t expected = NearestHalf(near[i]);
        EXPECT_TRUE(back[i].bits == expected || std::isnan(near[i])) << near[i] << ", " << back[i].bits;
      }
    }
  }
}

}  // namespace
}  // namespace trainyard
