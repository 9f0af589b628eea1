// Sequence parallelism: between the products that tensor ranks divide (tensor_group.h), each rank has a part of the
// rows of the activations, so that norms, dropout and residual additions are computed and stored once. A micro-batch
// has sequences x tokens rows; rank r has `share` rows, beginning with row r x share:
//
//   column product   gathers the rows of x                   backward: reduces and scatters the gradient of x
//   row product      reduces and scatters the sum            backward: gathers the gradient of the result
//
// If the number of rows is not a multiple of the number of ranks, the last ranks have rows of padding: the values of
// these rows are finite and nothing reads them, and their gradients are 0.
//
// On each rank the parameters used between these products (norms, biases of row products, positions) get a gradient
// from the rank's own rows only, so their gradients must be added over the group (DataParallel). Source: Korthikanti et
// al., "Reducing activation recomputation in large transformer models", arXiv:2205.05198, section 4.2; there each rank
// has positions of every sequence, here rows of the micro-batch, which need not be reordered.
//
// All ranks of the group call these functions in the same order. Errors are those of the group, thrown.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "models/model_part.h"
#include "worker/model/ops/dropout.h"
#include "worker/model/tensor_group.h"

namespace trainyard {

// The rows of this rank. Backward uses a copy of this object, so `group` must outlive backward.
struct SequencePart {
  TensorGroup* group = nullptr;
  int64_t sequences = 0, tokens = 0;  // of the micro-batch

  int64_t rows() const { return sequences * tokens; }
  int64_t share() const { return ShareOfSequence(rows(), group->size()); }  // rows of each rank
  int64_t padded_rows() const { return share() * group->size(); }
  int64_t first() const { return group->rank() * share(); }
  int64_t held() const { return std::clamp<int64_t>(rows() - first(), 0, share()); }  // rows that are not padding
};

// This rank's part of a micro-batch; none if `part` does not divide the sequence. `inputs`: [sequences, tokens].
std::optional<SequencePart> SequencePartOf(const ModelPart& part, TensorGroup* group, const at::Tensor& inputs);

// Returns which elements of the whole micro-batch are in this rank's rows, with `columns` elements in each row.
SampleSlice SliceOf(const SequencePart& part, int64_t columns);

// A tensor for the rows of all ranks, [padded_rows, columns], whose padding is 0.
at::Tensor NewRows(const SequencePart& part, int64_t columns, const at::TensorOptions& options);

// This rank's part of `rows`, which has one element per row, filled up with `padding`: [share].
at::Tensor OwnRows(const SequencePart& part, const at::Tensor& rows, int64_t padding);
// The same for all ranks: [padded_rows].
at::Tensor PadRows(const SequencePart& part, const at::Tensor& rows, int64_t padding);

// Starts to gather the rows of all ranks, [padded_rows, columns], from each rank's own rows, which are dense: [share,
// columns]. The result has values after the group's Wait.
at::Tensor StartGatherRows(const SequencePart& part, const at::Tensor& own);
// Gathers the rows of all ranks, waits, and returns them without padding: [rows, columns].
at::Tensor GatherRows(const SequencePart& part, const at::Tensor& own);

// Starts to add up `rows`, [padded_rows, columns], over the ranks. The result, this rank's rows of the sum, has values
// after the group's Wait.
at::Tensor StartScatterRows(const SequencePart& part, const at::Tensor& rows);

}  // namespace trainyard
