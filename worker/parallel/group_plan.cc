#include "worker/parallel/group_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/parallel/buckets.h"

namespace trainyard {
namespace {

constexpr Sharding kReplicated = Sharding::kReplicated, kSharded = Sharding::kSharded;
constexpr StateSharding kAllReplicated = {kReplicated, kReplicated, kReplicated};

bool IsTrained(const Model& model, int parameter) { return model.parameters()[parameter].tensor.requires_grad(); }

int64_t SizeOf(const Model& model, int parameter) { return model.parameters()[parameter].tensor.numel(); }

class GroupPlanner {
 public:
  GroupPlanner(const Model& model, const DataParallelOptions& options)
      : model_(model), options_(options), sharding_(ShardingOf(options.strategy)) {}

  void PlanBuckets(const std::vector<int>& ready_order) {
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < model_.parameters().size(); ++i) sizes.push_back(SizeOf(model_, static_cast<int>(i)));
    for (std::vector<int>& bucket : CutBuckets(sizes, ready_order, options_.bucket_elements)) {
      plans_.push_back({absl::StrCat("bucket ", plans_.size()), std::move(bucket), sharding_});
    }
    std::vector<int> frozen;
    for (size_t i = 0; i < model_.parameters().size(); ++i) {
      if (!IsTrained(model_, static_cast<int>(i))) frozen.push_back(static_cast<int>(i));
    }
    Add({"frozen", std::move(frozen), kAllReplicated, /*trained=*/false});
  }

  void PlanUnits() {
    GroupPlan persistent{"persistent", {}, {kReplicated, kSharded, kSharded}},
        persistent_frozen{"persistent frozen", {}, kAllReplicated, /*trained=*/false};
    std::vector<GroupPlan> frozen;
    for (size_t u = 0; u < model_.units().size(); ++u) {
      const Unit& unit = model_.units()[u];
      const int number = static_cast<int>(u);
      GroupPlan own{unit.name, {}, sharding_, true, number};
      GroupPlan frozen_part{absl::StrCat(unit.name, " frozen"), {}, sharding_, false, number};
      for (int i = unit.first_parameter; i < unit.first_parameter + unit.num_parameters; ++i) {
        const bool is_persistent = SizeOf(model_, i) < options_.persist_elements, trained = IsTrained(model_, i);
        GroupPlan& persistent_group = trained ? persistent : persistent_frozen;
        GroupPlan& unit_group = trained ? own : frozen_part;
        (is_persistent ? persistent_group : unit_group).parameters.push_back(i);
      }
      Add(std::move(own));
      if (!frozen_part.parameters.empty()) frozen.push_back(std::move(frozen_part));
    }
    Add(std::move(persistent));
    for (GroupPlan& frozen_part : frozen) Add(std::move(frozen_part));
    Add(std::move(persistent_frozen));
  }

  std::vector<GroupPlan> TakePlans() { return std::move(plans_); }

 private:
  void Add(GroupPlan plan) {
    if (!plan.parameters.empty()) plans_.push_back(std::move(plan));
  }

  const Model& model_;
  const DataParallelOptions& options_;
  const StateSharding sharding_;
  std::vector<GroupPlan> plans_;
};

}  // namespace

std::vector<GroupPlan> PlanGroups(const Model& model, const DataParallelOptions& options,
                                  const std::vector<int>& ready_order) {
  GroupPlanner planner(model, options);
  if (ShardingOf(options.strategy).parameters == kSharded) {
    planner.PlanUnits();
  } else {
    planner.PlanBuckets(ready_order);
  }
  return planner.TakePlans();
}

std::vector<int> TrainedInReadyOrder(const Model& model) {
  std::vector<int> order = model.ReadyOrder();
  std::erase_if(order, [&](int i) { return !IsTrained(model, i); });
  return order;
}

int FirstBackwardUnit(const Model& model) {
  for (size_t u = 0; u < model.units().size(); ++u) {
    const Unit& unit = model.units()[u];
    for (int i = unit.first_parameter; i < unit.first_parameter + unit.num_parameters; ++i) {
      if (IsTrained(model, i) && (u > 0 || model.FeedsUnits(i))) return std::max(static_cast<int>(u), 1);
    }
  }
  return static_cast<int>(model.units().size());
}

}  // namespace trainyard
