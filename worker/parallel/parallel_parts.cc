#include "worker/parallel/parallel_parts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/parallel/group_plan.h"
#include "worker/parallel/pass_plan.h"

namespace trainyard {
namespace {

// For a bucket that is being reduced, one that is being filled, and one with a tied embedding, which is begun early.
constexpr int kBucketSlots = 3;

FlatGroups MakeGroups(const Model& model, const MeshCommunicators& communicators, const DataParallelOptions& options,
                      const Precision& precision, const std::vector<int>& ready_order) {
  FlatGroups groups;
  for (GroupPlan& plan : PlanGroups(model, options, ready_order)) {
    groups.push_back(std::make_unique<FlatGroup>(model, std::move(plan.name), std::move(plan.parameters), plan.sharding,
                                                 precision, *communicators.shard, options.offload, options.ledger,
                                                 communicators.data, plan.unit));
  }
  return groups;
}

// Makes slots that are as long as the longest group or unit that uses one. No slot is made in advance unless gradients
// are sharded over several ranks.
SlotPool MakePool(const Model& model, const FlatGroups& groups, Communicator& shard, const DataParallelOptions& options,
                  const Precision& precision, const std::vector<UnitAction>& plan) {
  const StateSharding sharding = ShardingOf(options.strategy);
  const bool groups_are_units = sharding.parameters == Sharding::kSharded;
  std::vector<int64_t> elements(model.units().size());  // by unit
  int64_t bucket = 0;
  int num_buckets = 0;
  for (const auto& group : groups) {
    if (group->unit() > 0) elements[group->unit()] += group->layout().total;
    if (group->unit() >= 0 || !group->trained()) continue;
    bucket = std::max(bucket, group->layout().total);
    ++num_buckets;
  }
  const int64_t longest = groups_are_units ? *std::max_element(elements.begin(), elements.end()) : bucket;
  int slots = 0;
  if (shard.world_size() > 1 && sharding.gradients == Sharding::kSharded) {
    std::vector<bool> trained;
    for (int group : TrainedGroups(model, groups)) trained.push_back(group >= 0);
    slots =
        groups_are_units ? PlanSlots(plan, /*gradients_in_slots=*/true, trained) : std::min(kBucketSlots, num_buckets);
  }
  const size_t element_bytes = std::max(c10::elementSize(precision.param), c10::elementSize(precision.reduce));
  return SlotPool(longest * static_cast<int64_t>(element_bytes), slots, model.parameters()[0].tensor.device(),
                  options.ledger, &shard, *options.clock, options.stream_waits);
}

// Returns the trained groups that belong to no unit of the model.
std::vector<int> GroupsWithoutUnit(const FlatGroups& groups) {
  std::vector<int> found;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g]->trained() && groups[g]->unit() < 0) found.push_back(static_cast<int>(g));
  }
  return found;
}

}  // namespace

Precision PrecisionFor(const Model& model, const DataParallelOptions& options) {
  const at::ScalarType type = model.parameters()[0].tensor.scalar_type();
  return options.precision.value_or(
      Precision{.param = type, .reduce = type, .output = type, .master = type, .state = type});
}

ParallelParts::ParallelParts(Model& model, const MeshCommunicators& communicators, const DataParallelOptions& options,
                             const UpdateOptions& update, const Precision& precision,
                             const std::vector<int>& ready_order)
    : groups_are_units(ShardingOf(options.strategy).parameters == Sharding::kSharded),
      groups(MakeGroups(model, communicators, options, precision, ready_order)),
      groups_without_unit(GroupsWithoutUnit(groups)),
      plans(PlanPasses(model, groups, options, communicators.reshard != nullptr)),
      pool(MakePool(model, groups, *communicators.shard, options, precision, plans.reducing)),
      gatherer(model, groups, communicators, pool, options),
      reducer(model, groups, communicators, options, precision, &pool, groups_are_units),
      updater(groups, communicators, options, update, reducer.scatters()),
      runner(model, groups, plans, gatherer, reducer) {}

}  // namespace trainyard
