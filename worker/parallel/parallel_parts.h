// The flat groups of a model and the objects that work on them. They are created together, because all of them depend
// on the groups.
//
// Belongs to the loop's thread.
#pragma once

#include "absl/status/status.h"
#include "worker/model/model.h"
#include "worker/numerics/precision.h"
#include "worker/parallel/data_parallel_options.h"
#include "worker/parallel/flat_group.h"
#include "worker/parallel/gatherer.h"
#include "worker/parallel/pass_runner.h"
#include "worker/parallel/reducer.h"
#include "worker/parallel/slot_pool.h"
#include "worker/parallel/update.h"
#include "worker/parallel/updater.h"

namespace trainyard {

// The precision in `options`; without one, everything in the model's type.
Precision PrecisionFor(const Model& model, const DataParallelOptions& options);

struct ParallelParts {
  // The groups hold zeros until values are copied into them. Owns no argument. `ready_order`: all trained parameters in
  // the order in which buckets take them.
  ParallelParts(Model& model, const MeshCommunicators& communicators, const DataParallelOptions& options,
                const UpdateOptions& update, const Precision& precision, const std::vector<int>& ready_order);

  const bool groups_are_units;  // true if parameters are sharded
  const FlatGroups groups;
  const std::vector<int> groups_without_unit;  // if groups_are_units: trained groups that belong to no unit
  const PassPlans plans;
  SlotPool pool;
  Gatherer gatherer;
  Reducer reducer;
  Updater updater;
  PassRunner runner;
};

}  // namespace trainyard
