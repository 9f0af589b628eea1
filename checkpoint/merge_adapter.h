// Adds a low-rank adapter to the matrix of its projection. Pure; needs no torch.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "models/model_description.h"

namespace trainyard {

// Values of one tensor, row-major, and their type as in safetensors.
struct TensorValues {
  absl::string_view bytes;
  absl::string_view dtype;
};

// Returns W + scale B A, or, for a matrix W that is stored as [in, out], W + scale (B A)^T; in type `dtype`.
// The sums are computed in fp64; a result in another type is rounded once. REQUIRES: the types are floating, and the
// numbers of values are those of the projection and its adapter of rank `rank`.
std::string MergeAdapter(const ProjectionDescription& projection, int64_t rank, double scale,
                         const TensorValues& weight, const TensorValues& a, const TensorValues& b,
                         absl::string_view dtype);

}  // namespace trainyard
