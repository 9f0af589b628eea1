// Carries out the plan of a pass (pass_plan.h) while the model runs. Ranks that compute and ranks that have nothing to
// compute advance through the same list, so their collectives cannot diverge.
//
//   runner.Begin(with_backward)
//   runner.Advance({UnitAct::kForward, u})   runs the plan up to the computation of u, which the caller then runs
//   runner.RunUpToComputation()              runs the actions that follow it
//   ...
//   runner.SetReducing(reduce)               may be called until backward begins, because the plans with and
//                                            without reductions have the same forward
//   runner.RunToEnd()
//
// Plans are carried out only where parameters are sharded and the pipeline has one stage. Belongs to the loop's thread.
// Calls fail with the errors of a Collective.
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

// The plans of all kinds of passes; empty where parameters are replicated.
struct PassPlans {
  std::vector<UnitAction> evaluation;
  std::vector<UnitAction> inner;     // with backward; gradients are not reduced
  std::vector<UnitAction> reducing;  // with backward
};
PassPlans PlanPasses(const Model& model, const FlatGroups& groups, const DataParallelOptions& options, bool reshards);

// Returns, for each unit, its trained group, whose gradients are reduced after the backward of the unit; -1: none.
std::vector<int> TrainedGroups(const Model& model, const FlatGroups& groups);

class PassRunner {
 public:
  // Nothing is owned; all arguments must outlive it.
  PassRunner(const Model& model, const FlatGroups& groups, const PassPlans& plans, Gatherer& gatherer, Reducer& reducer)
      : model_(model),
        trained_groups_(TrainedGroups(model, groups)),
        plans_(plans),
        gatherer_(gatherer),
        reducer_(reducer) {}

  // Frees what an unfinished pass has gathered.
  absl::Status Begin(bool with_backward);
  void SetReducing(bool reduce) { plan_ = reduce ? &plans_.reducing : &plans_.inner; }
  bool evaluates() const { return plan_ == &plans_.evaluation; }

  // Runs the plan up to the next computation, which must be `computation`. Backward may skip units that no gradient has
  // reached; they are freed in their turn. Fails with FailedPrecondition if another unit is next.
  absl::Status Advance(const UnitAction& computation);
  // Runs the plan up to the next computation, but does not free the root, which is in use to the end of a pass: its
  // last norm and the head come after the last unit.
  absl::Status RunUpToComputation();
  // `waits` false: leaves the wait for the last reduction to FinishBackward.
  absl::Status RunToEnd(bool waits = true);
  // Whether the last action was the computation `action`.
  bool IsAfter(const UnitAction& action) const { return cursor_ > 0 && (*plan_)[cursor_ - 1] == action; }

 private:
  absl::Status RunAction(const UnitAction& action);

  const Model& model_;
  const std::vector<int> trained_groups_;
  const PassPlans& plans_;
  Gatherer& gatherer_;
  Reducer& reducer_;
  const std::vector<UnitAction>* plan_ = &plans_.evaluation;
  size_t cursor_ = 0;  // next action of the plan
};

}  // namespace trainyard
