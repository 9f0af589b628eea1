#include "checkpoint/merge_adapter.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "checkpoint/dtype_convert.h"

namespace trainyard {
namespace {

std::vector<double> DoublesOf(const TensorValues& values) {
  const std::string bytes = ConvertValues(values.bytes, values.dtype, "F64");
  std::vector<double> doubles(bytes.size() / sizeof(double));
  std::memcpy(doubles.data(), bytes.data(), bytes.size());
  return doubles;
}

// `matrix` is [rows, columns].
std::vector<double> Transposed(const std::vector<double>& matrix, size_t rows, size_t columns) {
  std::vector<double> out(matrix.size());
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) out[j * rows + i] = matrix[i * columns + j];
  }
  return out;
}

}  // namespace

std::string MergeAdapter(const ProjectionDescription& projection, int64_t rank, double scale,
                         const TensorValues& weight, const TensorValues& a, const TensorValues& b,
                         absl::string_view dtype) {
  const size_t in = static_cast<size_t>(projection.in), out = static_cast<size_t>(projection.out);
  const size_t inner = static_cast<size_t>(rank);
  // The product of `left`, [rows, rank], and `right`, [rank, columns], has the layout of the matrix.
  const size_t rows = projection.transposed ? out : in, columns = projection.transposed ? in : out;
  const std::vector<double> left = projection.transposed ? DoublesOf(b) : Transposed(DoublesOf(a), inner, in);
  const std::vector<double> right = projection.transposed ? DoublesOf(a) : Transposed(DoublesOf(b), out, inner);
  const size_t row_bytes = weight.bytes.size() / rows;
  std::string merged;
  for (size_t i = 0; i < rows; ++i) {  // a row at a time, so that only one row is held in fp64
    std::vector<double> row = DoublesOf({weight.bytes.substr(i * row_bytes, row_bytes), weight.dtype});
    for (size_t k = 0; k < inner; ++k) {
      const double factor = scale * left[i * inner + k];
      for (size_t j = 0; j < columns; ++j) row[j] += factor * right[k * columns + j];
    }
    const absl::string_view bytes(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(double));
    merged += ConvertValues(bytes, "F64", dtype);
  }
  return merged;
}

}  // namespace trainyard
