// The types in which a job computes, communicates, stores state and updates. Pure.
//
//   fp32, fp64   the same type for everything
//   bf16, fp16   16-bit parameters and activations, everything else fp32; fp16 with a loss scaler
//   a map        each type by name. If reduce is missing, it is the type of param; the others are fp32 if missing, or
//                fp64 if param is fp64
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

struct Precision {
  at::ScalarType param = at::kFloat;   // weights and activations in forward and backward, and gathers
  at::ScalarType reduce = at::kFloat;  // gradients in communication
  at::ScalarType output = at::kFloat;  // logits, from which the loss is computed
  at::ScalarType master = at::kFloat;  // weights that the optimizer updates
  at::ScalarType state = at::kFloat;   // the optimizer's moments
  bool scaled = false;                 // a loss scaler keeps small gradients above the smallest fp16 number

  bool operator==(const Precision&) const = default;

  // Whether the weights used in computation are a copy of the master weights that the optimizer updates.
  bool keeps_masters() const { return master != param; }
  // Whether the optimizer writes bf16, which has too few bits for most updates; stochastic rounding keeps their mean.
  bool rounds_stochastically() const { return master == at::kBFloat16 || state == at::kBFloat16; }

  std::string ToString() const;  // "bf16 (reduce fp32, output fp32, master fp32, state fp32)", "fp32"
};

// An empty name is a missing entry.
struct PrecisionNames {
  std::string param = {}, reduce = {}, output = {}, master = {}, state = {};
};

// fp32, fp64, bf16 or fp16. Possible errors: InvalidArgument.
absl::StatusOr<at::ScalarType> TypeFromName(absl::string_view name);

// Possible errors: InvalidArgument, which names all invalid combinations and the alternatives.
absl::StatusOr<Precision> ParsePrecision(absl::string_view name);
absl::StatusOr<Precision> ParsePrecision(const PrecisionNames& names);

}  // namespace trainyard
