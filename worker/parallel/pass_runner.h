// Carries out the plan of a pass (pass_plan.h) while the model runs: whoever computes and whoever has nothing to
// compute advance through the same list, so their collectives cannot diverge.
//
//   runner.Begin(with_backward)
//   runner.Advance({UnitAct::kForward, u})   up to the computation of u, which the caller then makes
//   runner.RunUpToComputation()          what follows it
//   ...
//   runner.SetReducing(reduce)           forward's part of the two plans with backward is the same
//   runner.RunToEnd()
//
// Only where parameters are sharded; else there is no plan. Belongs to the loop's thread. Possible errors: those of a
// Collective.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "worker/model/model.h"
#include "worker/parallel/data_parallel_options.h"
#include "worker/parallel/flat_group.h"
#include "worker/parallel/gatherer.h"
#include "worker/parallel/pass_plan.h"
#include "worker/parallel/reducer.h"

namespace trainyard {

// The passes there are, as plans; all empty where parameters are replicated.
struct PassPlans {
  std::vector<UnitAction> evaluation;
  std::vector<UnitAction> inner;     // with backward; gradients stay where they are
  std::vector<UnitAction> reducing;  // with backward
};
PassPlans PlanPasses(const Model& model, const FlatGroups& groups, const DataParallelOptions& options, bool keeps_part);

// By unit: its trained group, whose gradients are reduced when the unit is through; -1: none.
std::vector<int> TrainedGroups(const Model& model, const FlatGroups& groups);

class PassRunner {
 public:
  // Owns nothing; all must outlive it.
  PassRunner(const Model& model, const FlatGroups& groups, const PassPlans& plans, Gatherer& gatherer, Reducer& reducer)
      : model_(model),
        trained_groups_(TrainedGroups(model, groups)),
        plans_(plans),
        gatherer_(gatherer),
        reducer_(reducer) {}

  // Puts away what a pass that was left has gathered.
  absl::Status Begin(bool with_backward);
  void SetReducing(bool reduce) { plan_ = reduce ? &plans_.reducing : &plans_.inner; }
  bool evaluates() const { return plan_ == &plans_.evaluation; }

  // Up to the next computation, which is `computation`. Backward may pass over units that no gradient has reached; they
  // are closed in their turn. Possible errors, too: FailedPrecondition where another unit is due.
  absl::Status Advance(const UnitAction& computation);
  // The root is in use to the end of a pass: its last norm and the head come after the last unit.
  absl::Status RunUpToComputation();
  // Without `waits` the wait for the last reduction is left to FinishBackward.
  absl::Status RunToEnd(bool waits = true);
  // The last action was the computation of `action`.
  bool IsAfter(const UnitAction& action) const { return cursor_ > 0 && (*plan_)[cursor_ - 1] == action; }

 private:
  absl::Status CarryOut(const UnitAction& action);

  const Model& model_;
  const std::vector<int> trained_groups_;
  const PassPlans& plans_;
  Gatherer& gatherer_;
  Reducer& reducer_;
  const std::vector<UnitAction>* plan_ = &plans_.evaluation;
  size_t cursor_ = 0;  // next action of the plan
};

}  // namespace trainyard
