// Which parameters travel together, and how each such group is placed. Pure but for looking at the model.
//
//   parameters replicated    buckets of what is trained, in the order their gradients become ready; what is frozen in
//                            one group that is never sent again
//   parameters sharded       a group a unit, and one for what of it is frozen, gathered with it; parameters below
//                            persist_elements in one group for the whole model, replicated, with gradients and state
//                            sharded; what of those is frozen in one that is never sent again
#pragma once

#include <string>
#include <vector>

#include "worker/model/model.h"
#include "worker/parallel/data_parallel_options.h"
#include "worker/parallel/sharding.h"

namespace trainyard {

struct GroupPlan {
  std::string name;
  std::vector<int> parameters;  // of the model; all trained, or all frozen
  StateSharding sharding;
  bool trained = true;
  int unit = -1;  // that it comes and goes with; -1: it is always there
};

// `ready_order`: all trained parameters in the order in which buckets take them. What is trained comes first.
std::vector<GroupPlan> PlanGroups(const Model& model, const DataParallelOptions& options,
                                  const std::vector<int>& ready_order);

// The trained ones of Model::ReadyOrder.
std::vector<int> TrainedInReadyOrder(const Model& model);

// The first unit but the root that backward has to reach: what lies below has nothing to train. units().size(): none.
int FirstBackwardUnit(const Model& model);

}  // namespace trainyard
