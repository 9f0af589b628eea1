// Converts values between floating types, rounding to nearest, ties to even, as IEEE 754 and torch do. Pure; needs no
// torch.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace trainyard {

// Returns whether `dtype` is one of F64, F32, F16, BF16.
bool IsFloating(absl::string_view dtype);

// Returns "F32" for "fp32" and so on, the names of train.precision; empty for any other name.
std::string DtypeOfName(absl::string_view name);

// Writes `bytes`, which are values of type `from`, to `out`, converted to type `to`. REQUIRES: both types are floating,
// and `bytes` and `out` contain the same whole number of values.
void ConvertInto(absl::string_view bytes, absl::string_view from, absl::string_view to, absl::Span<char> out);

// Returns `bytes`, which are values of type `from`, converted to type `to`. REQUIRES: both types are floating, and
// `bytes` contains a whole number of values.
std::string ConvertValues(absl::string_view bytes, absl::string_view from, absl::string_view to);

// Checks that no value that is finite in `exact`, of type `from`, became infinite in `converted`, which contains the
// same values in type `to`. Fails with InvalidArgument, which names the tensor, the value, and types that can store it.
absl::Status CheckNoOverflow(absl::string_view tensor, absl::string_view exact, absl::string_view from,
                             absl::string_view converted, absl::string_view to);

// Does what ConvertValues does, and fails with the errors of CheckNoOverflow.
absl::StatusOr<std::string> ConvertWeights(absl::string_view tensor, absl::string_view bytes, absl::string_view from,
                                           absl::string_view to);

}  // namespace trainyard
