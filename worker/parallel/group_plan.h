// Decides which parameters form a group, and how each group is sharded. Pure, except that it reads the model.
//
//   parameters replicated    the trained parameters form buckets, in the order in which their gradients become ready;
//                            those of which every tensor rank has the whole have buckets of their own, and so has an
//                            embedding of which two stages have a copy; the frozen ones form one group, which is sent
//                            only once
//   parameters sharded       each unit is one group; its frozen parameters are another one, gathered with it, and so is
//                            an embedding of which two stages have a copy. What every tensor rank has whole is one
//                            group for the whole model, treated as parameters below persist_elements.
//                            Parameters below persist_elements form one group for the whole model, replicated, with
//                            gradients and optimizer state sharded; the frozen ones of them form a group that is sent
//                            only once
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
