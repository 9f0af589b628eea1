// In which types a job computes, sends, keeps and updates. Pure.
//
//   fp32, fp64   all of one type
//   bf16, fp16   parameters and activations of 16 bits, everything else fp32; fp16 with a loss scaler
//   a map        each by its own name; what it leaves out: reduce as param, the rest fp32
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

struct Precision {
  at::ScalarType param = at::kFloat;   // of weights and activations in forward and backward, and of gathers
  at::ScalarType reduce = at::kFloat;  // in which gradients are sent
  at::ScalarType output = at::kFloat;  // of logits, from which the loss is computed
  at::ScalarType master = at::kFloat;  // of the weights that the optimizer updates
  at::ScalarType state = at::kFloat;   // of the optimizer's moments
  bool scaled = false;                 // a loss scaler keeps small gradients above the least fp16

  bool operator==(const Precision&) const = default;

  // The weights that compute are a copy of those that are updated.
  bool keeps_masters() const { return master != param; }
  // What the optimizer writes has too few bits for most updates: rounded by chance, they add up.
  bool rounds_stochastically() const { return master == at::kBFloat16 || state == at::kBFloat16; }

  std::string ToString() const;  // "bf16 (reduce fp32, output fp32, master fp32, state fp32)", "fp32"
};

// Empty: left out.
struct PrecisionNames {
  std::string param = {}, reduce = {}, output = {}, master = {}, state = {};
};

// fp32, fp64, bf16 or fp16. Possible errors: InvalidArgument.
absl::StatusOr<at::ScalarType> TypeFromName(absl::string_view name);

// Possible errors: InvalidArgument, with all that cannot be at once and what can.
absl::StatusOr<Precision> ParsePrecision(absl::string_view name);
absl::StatusOr<Precision> ParsePrecision(const PrecisionNames& names);

}  // namespace trainyard
