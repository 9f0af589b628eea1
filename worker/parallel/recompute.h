// Activations that backward computes again instead of storing them between forward and backward.
//
//   none       stores all activations
//   blocks     stores only the input of every Nth unit; backward runs the unit again, then computes its gradients
//   selective  the same, but also stores the outputs of the unit's matrix products (model/product_tape.h)
//
// The first run makes no graph. The second run uses the same kernels and draws the same random numbers, because the
// body of a unit does so whenever it is called, so gradients are equal to those of `none`, bit for bit. To autograd,
// the second run is a part of the unit's backward. So the parameters of the unit are gathered once, before the second
// run, and their hooks (autograd_hooks.h) are called in the backward through that run.
//
// Belongs to the thread that runs the model.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/parallel/unit_runner.h"

namespace trainyard {

enum class RecomputeMode { kNone, kBlocks, kSelective };
// Fails with InvalidArgument for any other name than these three; the message lists them.
absl::StatusOr<RecomputeMode> RecomputeModeOf(absl::string_view name);

struct Recompute {
  RecomputeMode mode = RecomputeMode::kNone;
  int every = 1;  // units `every`, 2 x `every`, ..., but never the root. REQUIRES: >= 1
};

// Returns a runner of units that recomputes as `recompute` describes. Units below `first_backward` take no part in
// backward, so nothing is stored for them.
std::unique_ptr<UnitRunner> ApplyRecompute(const Recompute& recompute, int first_backward);

}  // namespace trainyard
