// The embedding and the head of a model whose vocabulary is divided among tensor ranks (tensor_group.h): each rank has
// consecutive rows of the matrix, not necessarily as many as the others. Source: Megatron-LM, arXiv:1909.08053,
// section 3.
//
// All ranks of the group call these functions in the same order. Errors of the group are thrown.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "worker/model/ops/linear.h"

namespace trainyard {

// This rank's rows of a matrix [vocabulary, width], dense.
struct VocabularyRows {
  NumberedTensor weight;  // [rows held, width]; at least one row
  int64_t first = 0;      // the index in the matrix of the first of these rows
  TensorGroup* group = nullptr;
  // Set if ranks divide the rows of activations: the embedding then scatters its sum, so that each rank has [share,
  // width], and the loss gathers the rows of an x of this shape.
  std::optional<SequencePart> part = {};
};

// Returns the rows of the whole matrix whose numbers are `tokens` (int64): [.., width], the same bits on every rank. If
// `part` is set, returns only this rank's share of them, [share, width]. Takes one sum over the group. The gradient of
// the weight goes through autograd.
at::Tensor EmbedVocabulary(const VocabularyRows& rows, const at::Tensor& tokens);

// Like HeadLoss (head_loss.h); every rank gets the same bits. Forward gathers three numbers per row of x from each
// rank, backward sums the gradient of x. If `keeps_scores`, forward stores this rank's scores of all rows, and backward
// does not compute them again.
at::Tensor VocabularyLoss(const at::Tensor& x, const VocabularyRows& rows, const at::Tensor& targets,
                          std::optional<at::ScalarType> output, bool keeps_scores, GradientSink* sink = nullptr,
                          std::optional<int64_t> max_elements = std::nullopt);

}  // namespace trainyard
