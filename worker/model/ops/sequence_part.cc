#include "worker/model/ops/sequence_part.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

namespace trainyard {

std::optional<SequencePart> SequencePartOf(const ModelPart& part, TensorGroup* group, const at::Tensor& inputs) {
  if (!part.divides_sequence) return std::nullopt;
  return SequencePart{.group = group, .sequences = inputs.size(0), .tokens = inputs.size(1)};
}

SampleSlice SliceOf(const SequencePart& part, int64_t columns) {
  return {.first = part.first() * columns, .sample_size = part.tokens * columns};
}

at::Tensor NewRows(const SequencePart& part, int64_t columns, const at::TensorOptions& options) {
  at::Tensor rows = at::empty({part.padded_rows(), columns}, options);
  rows.narrow(0, part.rows(), part.padded_rows() - part.rows()).zero_();
  return rows;
}

at::Tensor PadRows(const SequencePart& part, const at::Tensor& rows, int64_t padding) {
  at::Tensor padded = at::full({part.padded_rows()}, padding, rows.options());
  padded.narrow(0, 0, part.rows()).copy_(rows.reshape({-1}));
  return padded;
}

at::Tensor OwnRows(const SequencePart& part, const at::Tensor& rows, int64_t padding) {
  return PadRows(part, rows, padding).narrow(0, part.first(), part.share());
}

at::Tensor StartGatherRows(const SequencePart& part, const at::Tensor& own) {
  at::Tensor rows = at::empty({part.padded_rows(), own.size(1)}, own.options());
  part.group->StartAllGather(rows, own);
  return rows;
}

at::Tensor GatherRows(const SequencePart& part, const at::Tensor& own) {
  const at::Tensor rows = StartGatherRows(part, own);
  part.group->Wait();
  return rows.narrow(0, 0, part.rows());
}

at::Tensor StartScatterRows(const SequencePart& part, const at::Tensor& rows) {
  at::Tensor own = at::empty({part.share(), rows.size(1)}, rows.options());
  part.group->StartReduceScatter(own, rows);
  return own;
}

}  // namespace trainyard
