#include "worker/parallel/parallel_parts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/parallel/buckets.h"
#include "worker/parallel/schedule.h"

namespace trainyard {
namespace {

constexpr Placement kShard = Placement::kShard;
constexpr int kBucketSlots = 3;  // one on its way, one being filled, one begun early (a tied embedding's)

FlatGroups MakeGroups(const Model& model, const MeshCommunicators& communicators, const DataParallelOptions& options,
                      const Precision& precision) {
  Communicator &shard = *communicators.shard, &world = *communicators.world;
  const Placements placements = PlacementsOf(options.strategy);
  FlatGroups groups;
  if (placements.parameters == kShard) {
    for (const Unit& unit : model.units()) {
      std::vector<int> parameters;
      for (int i = 0; i < unit.num_parameters; ++i) parameters.push_back(unit.first_parameter + i);
      groups.push_back(std::make_unique<FlatGroup>(model, unit.name, std::move(parameters), placements, precision,
                                                   shard, options.offload, options.ledger));
    }
    return groups;
  }
  std::vector<int64_t> sizes;
  for (const NamedTensor& parameter : model.parameters()) sizes.push_back(parameter.tensor.numel());
  for (std::vector<int>& parameters : CutBuckets(sizes, options.bucket_elements)) {
    groups.push_back(std::make_unique<FlatGroup>(model, absl::StrCat("bucket ", groups.size()), std::move(parameters),
                                                 placements, precision, shard, options.offload, options.ledger,
                                                 &world));
  }
  return groups;
}

// Slots as long as the longest group that uses one; none where nothing comes and goes.
SlotPool MakePool(const Model& model, const FlatGroups& groups, Communicator& shard, const DataParallelOptions& options,
                  const Precision& precision, const std::vector<Action>& plan) {
  const Placements placements = PlacementsOf(options.strategy);
  const bool units = placements.parameters == kShard;
  int64_t elements = 0;
  for (size_t g = units ? 1 : 0; g < groups.size(); ++g) elements = std::max(elements, groups[g]->layout().total);
  int slots = 0;
  if (shard.world_size() > 1 && placements.gradients == kShard) {
    slots = units ? PlanSlots(plan, /*gradients_in_slots=*/true) : std::min<int>(kBucketSlots, groups.size());
  }
  const size_t width = std::max(c10::elementSize(precision.param), c10::elementSize(precision.reduce));
  return SlotPool(elements * static_cast<int64_t>(width), slots, model.parameters()[0].tensor.device(), options.ledger,
                  &shard);
}

}  // namespace

Precision PrecisionFor(const Model& model, const DataParallelOptions& options) {
  const at::ScalarType type = model.parameters()[0].tensor.scalar_type();
  return options.precision.value_or(
      Precision{.param = type, .reduce = type, .output = type, .master = type, .state = type});
}

ParallelParts::ParallelParts(Model& model, const MeshCommunicators& communicators, const DataParallelOptions& options,
                             const Precision& precision)
    : units(PlacementsOf(options.strategy).parameters == kShard),
      groups(MakeGroups(model, communicators, options, precision)),
      plans(PlanPasses(groups, options)),
      pool(MakePool(model, groups, *communicators.shard, options, precision, plans.reducing)),
      gatherer(groups, *communicators.shard, pool, options.events, options.ledger),
      reducer(model, groups, communicators, options, precision, &pool, /*own_root=*/units),
      updater(groups, communicators, options, reducer.scatters()),
      runner(model, plans, gatherer, reducer) {}

}  // namespace trainyard
