// Activations that are made again in backward instead of being kept from forward to then.
//
//   none       all are kept
//   blocks     of every Nth unit only its input is kept; backward runs the unit once more, then backward through that
//   selective  the same, but the outputs of its matrix products are kept too (model/product_tape.h)
//
// The first run makes no graph, the second meets the same kernels and draws the same random numbers, as a unit's body
// does whenever it is called: gradients are those of `none`, bit for bit. Both lie between the gate of a unit and its
// output (autograd_hooks.h): the unit is gathered once for both halves of its backward, and hooks of parameters are
// called from within.
//
// Belongs to the thread that runs the model.
#pragma once

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/model/model.h"

namespace trainyard {

enum class RecomputeMode { kNone, kBlocks, kSelective };
// Possible errors: InvalidArgument for a word that is none of the three; the message lists them.
absl::StatusOr<RecomputeMode> RecomputeModeOf(absl::string_view word);

struct Recompute {
  RecomputeMode mode = RecomputeMode::kNone;
  int every = 1;  // units `every`, 2 x `every`, ...; the root is none of them. REQUIRES: >= 1
};

// Runs `unit` as the model would; under grad mode in the way that `recompute` asks for.
at::Tensor RunBody(const Recompute& recompute, int unit, const at::Tensor& x, const UnitBody& body);

}  // namespace trainyard
