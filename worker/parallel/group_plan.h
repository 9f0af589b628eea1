// Decides which parameters form a group, and how each group is sharded. Pure, except that it reads the model.
//
//   parameters replicated    the trained parameters form buckets, in the order in which their gradients become ready;
//                            the frozen ones form one group, which is copied from rank 0 once, at the beginning
//   parameters sharded       each unit is one group; its frozen parameters are another group, gathered with it.
//                            Parameters below persist_elements form one group for the whole model, replicated, with
//                            gradients and optimizer state sharded; the frozen ones among them form a group, copied
//                            from rank 0 once, at the beginning
//
// Two kinds of parameters have groups of their own, so that all ranks with a copy of a parameter divide it in the same
// way:
//   - those that every tensor rank has whole. If parameters are sharded, they are treated as parameters below
//     persist_elements.
//   - an embedding of which two stages have a copy. If parameters are sharded, it is gathered with its unit.
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
  int unit = -1;  // gathered and freed with this unit; -1: never freed
};

// `ready_order`: all trained parameters in the order in which buckets take them. Trained groups come first.
std::vector<GroupPlan> PlanGroups(const Model& model, const DataParallelOptions& options,
                                  const std::vector<int>& ready_order);

// The trained parameters of Model::ReadyOrder.
std::vector<int> TrainedInReadyOrder(const Model& model);

// The first unit except the root that backward must reach: the units below have nothing to train. units().size() if
// there is none.
int FirstBackwardUnit(const Model& model);

}  // namespace trainyard
