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

namespace trainyard {
namespace {

constexpr int64_t kRows = 256;  // rows of a 16-bit result that are computed at a time

bool IsOurs(const at::Tensor& x) { return x.is_cpu() && HasGemm(x.scalar_type()); }

template <typename T>
MatrixRef<T> Ref(const at::Tensor& matrix, bool transposed = false) {
  // A matrix of one row may have any stride.
  return {matrix.const_data_ptr<T>(), std::max(matrix.stride(0), matrix.size(1)), transposed};
}

template <typename T>
const T* DataOf(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

// Calls `run` with a null pointer to the element type. REQUIRES: HasGemm of the type.
template <typename Run>
void ForType(at::ScalarType type, const Run& run) {
  if (type == at::kFloat) return run(static_cast<float*>(nullptr));
  if (type == at::kBFloat16) return run(static_cast<c10::BFloat16*>(nullptr));
  run(static_cast<c10::Half*>(nullptr));
}

// A 16-bit product, [rows, columns], with the terms to add to it.
template <typename T>
struct RoundedProduct {
  MatrixRef<T> a, b;
  int64_t rows, depth, columns;
  const T* bias = nullptr;      // [columns]; null: none
  const T* residual = nullptr;  // [rows, columns]; null: none
  T* to = nullptr;              // [rows, columns]; may be the residual
};

template <typename T>
void Multiply(const RoundedProduct<T>& product) {
  const int64_t blocks = (product.rows + kRows - 1) / kRows;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    at::Tensor sums = at::empty({std::min(kRows, product.rows), product.columns}, at::kFloat);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kRows, rows = std::min(kRows, product.rows - first);
      MatrixRef<T> a = product.a;
      a.data += a.transposed ? first : first * a.row;
      Gemm(rows, product.columns, product.depth, 1, a, product.b, 0, sums.mutable_data_ptr<float>(), product.columns);
      RoundRows<T>({.sums = sums.const_data_ptr<float>(),
                    .bias = product.bias,
                    .residual = product.residual == nullptr ? nullptr : product.residual + first * product.columns,
                    .to = product.to + first * product.columns,
                    .rows = rows,
                    .columns = product.columns});
    }
  });
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
  if (!IsOurs(x)) return WriteProductByLibTorch(x, transposed ? w.t() : w, bias, residual, y);
  const int64_t out = w.size(transposed ? 0 : 1);
  ForType(x.scalar_type(), [&]<typename T>(T*) {
    if constexpr (std::is_same_v<T, float>) {
      if (residual.defined() && bias.defined()) {
        at::add_out(y, residual, bias);
      } else if (!residual.is_same(y) && (residual.defined() || bias.defined())) {
        y.copy_(residual.defined() ? residual : bias.expand_as(y));
      }
      const float beta = residual.defined() || bias.defined() ? 1 : 0;
      Gemm(x.size(0), out, x.size(1), 1, Ref<T>(x), Ref<T>(w, transposed), beta, y.mutable_data_ptr<T>(), out);
    } else {
      Multiply<T>({.a = Ref<T>(x),
                   .b = Ref<T>(w, transposed),
                   .rows = x.size(0),
                   .depth = x.size(1),
                   .columns = out,
                   .bias = DataOf<T>(bias),
                   .residual = DataOf<T>(residual),
                   .to = y.mutable_data_ptr<T>()});
    }
  });
}

at::Tensor Product(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias,
                   const at::Tensor& residual) {
  at::Tensor y = at::empty({x.size(0), w.size(transposed ? 0 : 1)}, x.options());
  WriteProduct(x, w, transposed, bias, residual, y);
  return y;
}

void WriteTransposedProduct(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& place, bool overwrites) {
  const bool same_type = place.scalar_type() == x.scalar_type();
  if (!x.is_cpu() && same_type) {
    at::Tensor to = place;
    overwrites ? at::mm_out(to, x.t(), grad) : to.addmm_(x.t(), grad);
    return;
  }
  if (x.is_cuda() && x.element_size() == 2 &&
      place.scalar_type() == at::kFloat) {  // the sums of a 16-bit product are not rounded
    at::Tensor to = place;
    overwrites ? at::mm_out(to, x.t(), grad, at::kFloat) : at::addmm_out(to, place, x.t(), grad, at::kFloat);
    return;
  }
  const bool rounds = same_type && IsSlowInLibTorch(x.scalar_type());
  if (!IsOurs(x) || (place.scalar_type() != at::kFloat && !rounds)) {
    at::Tensor gradient = at::mm(x.t(), grad);
    overwrites ? place.copy_(gradient) : place.add_(gradient);
    return;
  }
  const int64_t in = x.size(1), out = grad.size(1);
  ForType(x.scalar_type(), [&]<typename T>(T*) {
    const MatrixRef<T> a = Ref<T>(x, /*transposed=*/true), b = Ref<T>(grad);
    if (!rounds) return Gemm(in, out, x.size(0), 1, a, b, overwrites ? 0 : 1, place.mutable_data_ptr<float>(), out);
    if constexpr (!std::is_same_v<T, float>) {
      T* to = place.mutable_data_ptr<T>();
      Multiply<T>({.a = a,
                   .b = b,
                   .rows = in,
                   .depth = x.size(0),
                   .columns = out,
                   .residual = overwrites ? nullptr : to,
                   .to = to});
    }
  });
}

}  // namespace trainyard
