// The table of the memory that ZeRO's stages need per rank, from the number of parameters alone (arXiv:1910.02054). It
// counts the state of training, no activations; `trainctl validate --memory` plans a whole job. Pure.
//
//   7e9 parameters on 4 ranks      no ZeRO  ZeRO-1  ZeRO-2  ZeRO-3
//   parameters (16 bits)             14       14      14      3.5    GB
//   gradients (16 bits)              14       14       3.5    3.5
//   optimizer (two fp32 moments)     56       14      14     14
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard::planner {

// What is counted per parameter.
enum class Convention {
  kDocuments,  // 16-bit weights and gradients, two fp32 moments: 2 + 2 + 8 bytes
  kPaper,      // also the fp32 weights that the optimizer updates: 2 + 2 + 12 bytes, K = 12
  kTrainyard,  // what this program stores in 16 bits: gradients are added up in fp32, so 2 + 4 + 12 bytes
};
// "documents", "paper", "trainyard".
absl::string_view ConventionName(Convention convention);
// Possible errors: InvalidArgument, which lists the names.
absl::StatusOr<Convention> ConventionOf(absl::string_view name);

struct StateBytes {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double total() const { return parameters + gradients + optimizer; }
};

// Bytes for each parameter without sharding.
StateBytes BytesPerParameter(Convention convention);
// The same in fp32, where weights are stored once: 4 + 4 + 8.
StateBytes BytesPerParameterInFp32();

inline constexpr int kZeroStages = 4;  // 0 (nothing is sharded) to 3

// The bytes of a rank, for each stage.
using ZeroTable = std::array<StateBytes, kZeroStages>;
ZeroTable MakeZeroTable(Convention convention, double parameters, uint64_t ranks);

// How many times less memory each stage needs than stage 0. `ranks` 0: the limit for many ranks; that of stage 3 is
// infinite, because it is the number of ranks.
std::array<double, kZeroStages> ZeroSavings(Convention convention, uint64_t ranks);

}  // namespace trainyard::planner
