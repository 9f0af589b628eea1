#include "worker/model/ops/products.h"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <type_traits>

#include "worker/model/ops/rounding.h"
#include "worker/numerics/gemm.h"
#include "worker/numerics/one_dnn.h"
#include "worker/numerics/own_gemm.h"

namespace trainyard {
namespace {

constexpr int64_t kRows = 256;  // of 16-bit results at a time

// Which code computes a product.
enum class Route { kLibTorch, kOneDnn, kMkl, kOwn };

Route RouteOf(const at::Tensor& x, const ProductKey& key) {
  const at::ScalarType type = x.scalar_type();
  if (!x.is_cpu() || (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf)) return Route::kLibTorch;
  const ProductPath path = ProductPlanInUse().PathOf(key);
  if (path == ProductPath::kOwn) return Route::kOwn;
  if (path == ProductPath::kOneDnn && OneDnnMultiplies(type)) return Route::kOneDnn;
  return MklMultiplies(type) ? Route::kMkl : Route::kLibTorch;
}

template <typename T>
MatrixRef<T> Ref(const at::Tensor& matrix, bool transposed = false) {
  return {matrix.const_data_ptr<T>(), matrix.size(1), transposed};
}

template <typename T>
const T* DataOf(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

// Calls `run` with a null pointer to the element type.
template <typename Run>
void ForType(at::ScalarType type, const Run& run) {
  if (type == at::kFloat) return run(static_cast<float*>(nullptr));
  if (type == at::kBFloat16) return run(static_cast<c10::BFloat16*>(nullptr));
  run(static_cast<c10::Half*>(nullptr));
}

// A product that is rounded once, [rows, columns], with the terms to add to it.
template <typename T>
struct RoundedProduct {
  MatrixRef<T> a, b;
  int64_t rows, depth, columns;
  const T* bias = nullptr;      // [columns]; null: none
  const T* residual = nullptr;  // [rows, columns]; null: none
  T* to = nullptr;              // [rows, columns]; may be the residual

  // Stores a part of the sums.
  void Store(const SumBlock& block) const {
    const int64_t at = block.first_row * columns + block.first_column;
    RoundRows<T>({.sums = block.sums,
                  .sums_row = block.row,
                  .bias = bias == nullptr ? nullptr : bias + block.first_column,
                  .residual = residual == nullptr ? nullptr : residual + at,
                  .to = to + at,
                  .to_row = columns,
                  .rows = block.rows,
                  .columns = block.columns});
  }
};

template <typename T>
struct RoundingSink final : SumSink {
  explicit RoundingSink(const RoundedProduct<T>& of) : product(of) {}
  void Take(const SumBlock& block) const override { product.Store(block); }
  const RoundedProduct<T>& product;
};

template <typename T>
void MultiplyByMkl(const RoundedProduct<T>& product) {
  const int64_t blocks = (product.rows + kRows - 1) / kRows;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    at::Tensor sums = at::empty({std::min(kRows, product.rows), product.columns}, at::kFloat);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kRows, rows = std::min(kRows, product.rows - first);
      MatrixRef<T> a = product.a;
      a.data += a.transposed ? first : first * a.row;
      MklGemm(rows, product.columns, product.depth, 1, a, product.b, 0, sums.mutable_data_ptr<float>(),
              product.columns);
      product.Store({.sums = sums.const_data_ptr<float>(),
                     .row = product.columns,
                     .first_row = first,
                     .rows = rows,
                     .first_column = 0,
                     .columns = product.columns});
    }
  });
}

template <typename T>
void MultiplyRounded(Route route, const RoundedProduct<T>& product) {
  if (route != Route::kOwn) return MultiplyByMkl(product);
  OwnGemm(product.rows, product.columns, product.depth, product.a, product.b, RoundingSink<T>(product));
}

// Writes what a product of LibTorch, oneDNN or MKL is added to. Returns whether there is anything.
bool WriteTerms(const at::Tensor& bias, const at::Tensor& residual, at::Tensor& y) {
  if (residual.defined() && bias.defined()) {
    at::add_out(y, residual, bias);
  } else if (!residual.is_same(y) && (residual.defined() || bias.defined())) {
    y.copy_(residual.defined() ? residual : bias.expand_as(y));
  }
  return residual.defined() || bias.defined();
}

void WriteProductByLibTorch(const at::Tensor& x, const at::Tensor& factor, const at::Tensor& bias,
                            const at::Tensor& residual, at::Tensor& y) {
  const bool in_place = residual.is_same(y);
  if (in_place && !bias.defined()) {
    y.addmm_(x, factor);
    return;
  }
  const at::Tensor kept = in_place ? residual.clone() : residual;
  bias.defined() ? at::addmm_out(y, bias, x, factor) : at::mm_out(y, x, factor);
  if (kept.defined()) y.add_(kept);
}

}  // namespace

void WriteProduct(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias,
                  const at::Tensor& residual, at::Tensor y) {
  const int64_t out = w.size(transposed ? 0 : 1);
  const ProductLayout layout = transposed ? ProductLayout::kTransposed : ProductLayout::kPlain;
  const Route route = RouteOf(x, {.layout = layout, .depth = x.size(1), .columns = out});
  if (route == Route::kLibTorch) return WriteProductByLibTorch(x, transposed ? w.t() : w, bias, residual, y);
  if (route == Route::kOneDnn) {
    const bool adds = WriteTerms(bias, residual, y);
    return OneDnnProduct(x, transposed ? w.t() : w, /*overwrites=*/!adds, y);
  }
  if (route == Route::kMkl && x.scalar_type() == at::kFloat) {
    const float beta = WriteTerms(bias, residual, y) ? 1 : 0;
    return MklGemm(x.size(0), out, x.size(1), 1, Ref<float>(x), Ref<float>(w, transposed), beta,
                   y.mutable_data_ptr<float>(), out);
  }
  ForType(x.scalar_type(), [&]<typename T>(T*) {
    MultiplyRounded<T>(route, {.a = Ref<T>(x),
                               .b = Ref<T>(w, transposed),
                               .rows = x.size(0),
                               .depth = x.size(1),
                               .columns = out,
                               .bias = DataOf<T>(bias),
                               .residual = DataOf<T>(residual),
                               .to = y.mutable_data_ptr<T>()});
  });
}

at::Tensor Product(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias,
                   const at::Tensor& residual) {
  at::Tensor y = at::empty({x.size(0), w.size(transposed ? 0 : 1)}, x.options());
  WriteProduct(x, w, transposed, bias, residual, y);
  return y;
}

bool IsOwnProduct(const at::Tensor& x, const ProductKey& key) { return RouteOf(x, key) == Route::kOwn; }

void WriteTransposedProduct(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& place, bool overwrites) {
  const int64_t in = x.size(1), out = grad.size(1), rows = x.size(0);
  const Route route = RouteOf(x, {.layout = ProductLayout::kGradient, .depth = in, .columns = out});
  const bool same_type = place.scalar_type() == x.scalar_type();
  if ((!x.is_cpu() && same_type) || (route == Route::kOneDnn && same_type)) {
    at::Tensor to = place;
    if (route == Route::kOneDnn) return OneDnnProduct(x.t(), grad, overwrites, place);
    overwrites ? at::mm_out(to, x.t(), grad) : to.addmm_(x.t(), grad);
    return;
  }
  const bool rounds = same_type && x.scalar_type() != at::kFloat;
  if (rounds && (route == Route::kOwn || (route == Route::kMkl && IsSlowInLibTorch(x.scalar_type())))) {
    ForType(x.scalar_type(), [&]<typename T>(T*) {
      T* to = place.mutable_data_ptr<T>();
      MultiplyRounded<T>(route, {.a = Ref<T>(x, /*transposed=*/true),
                                 .b = Ref<T>(grad),
                                 .rows = in,
                                 .depth = rows,
                                 .columns = out,
                                 .residual = overwrites ? nullptr : to,
                                 .to = to});
    });
    return;
  }
  if (route == Route::kLibTorch || route == Route::kOneDnn || place.scalar_type() != at::kFloat) {
    at::Tensor gradient = at::mm(x.t(), grad);
    overwrites ? place.copy_(gradient) : place.add_(gradient);
    return;
  }
  ForType(x.scalar_type(), [&]<typename T>(T*) {
    const MatrixRef<T> a = Ref<T>(x, /*transposed=*/true), b = Ref<T>(grad);
    float *to = place.mutable_data_ptr<float>(), beta = overwrites ? 0 : 1;
    route == Route::kOwn ? OwnGemm(in, out, rows, 1, a, b, beta, to, out)
                         : MklGemm(in, out, rows, 1, a, b, beta, to, out);
  });
}

}  // namespace trainyard
