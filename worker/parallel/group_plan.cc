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
    Classes trained;
    for (const int parameter : ready_order) ClassOf(parameter, trained).push_back(parameter);
    for (std::vector<int>& bucket : CutBuckets(sizes, trained.others, options_.bucket_elements)) {
      plans_.push_back({absl::StrCat("bucket ", plans_.size()), std::move(bucket), sharding_});
    }
    for (std::vector<int>& bucket : CutBuckets(sizes, trained.replicated, options_.bucket_elements)) {
      plans_.push_back({absl::StrCat("replicated bucket ", plans_.size()), std::move(bucket), sharding_});
    }
    Add({"tied embedding", std::move(trained.tied), sharding_});
    Classes frozen;
    for (int i = 0; i < static_cast<int>(model_.parameters().size()); ++i) {
      if (!IsTrained(model_, i)) ClassOf(i, frozen).push_back(i);
    }
    Add({"frozen", std::move(frozen.others), kAllReplicated, /*trained=*/false});
    Add({"replicated frozen", std::move(frozen.replicated), kAllReplicated, /*trained=*/false});
    Add({"tied embedding, frozen", std::move(frozen.tied), kAllReplicated, /*trained=*/false});
  }

  void PlanUnits() {
    constexpr StateSharding kShardedUpdate = {kReplicated, kSharded, kSharded};
    GroupPlan persistent{"persistent", {}, kShardedUpdate},
        persistent_frozen{"persistent frozen", {}, kAllReplicated, /*trained=*/false};
    GroupPlan replicated{"replicated", {}, kShardedUpdate},
        replicated_frozen{"replicated frozen", {}, kAllReplicated, /*trained=*/false};
    std::vector<GroupPlan> frozen;
    for (size_t u = 0; u < model_.units().size(); ++u) {
      const Unit& unit = model_.units()[u];
      const int number = static_cast<int>(u);
      GroupPlan own{unit.name, {}, sharding_, true, number}, tied{"tied embedding", {}, sharding_, true, number};
      GroupPlan frozen_part{absl::StrCat(unit.name, " frozen"), {}, sharding_, false, number};
      GroupPlan frozen_tied{"tied embedding, frozen", {}, sharding_, false, number};
      for (int i = unit.first_parameter; i < unit.first_parameter + unit.num_parameters; ++i) {
        const bool trained = IsTrained(model_, i);
        Classes classes;
        const std::vector<int>* const class_of = &ClassOf(i, classes);
        if (class_of == &classes.tied) {
          (trained ? tied : frozen_tied).parameters.push_back(i);
        } else if (class_of == &classes.replicated) {
          (trained ? replicated : replicated_frozen).parameters.push_back(i);
        } else if (LargestBox(i) < options_.persist_elements) {
          (trained ? persistent : persistent_frozen).parameters.push_back(i);
        } else {
          (trained ? own : frozen_part).parameters.push_back(i);
        }
      }
      Add(std::move(own));
      Add(std::move(tied));
      if (!frozen_part.parameters.empty()) frozen.push_back(std::move(frozen_part));
      if (!frozen_tied.parameters.empty()) frozen.push_back(std::move(frozen_tied));
    }
    Add(std::move(persistent));
    Add(std::move(replicated));
    for (GroupPlan& frozen_part : frozen) Add(std::move(frozen_part));
    Add(std::move(persistent_frozen));
    Add(std::move(replicated_frozen));
  }

  std::vector<GroupPlan> TakePlans() { return std::move(plans_); }

 private:
  // Parameters of different classes never share a group, so that all ranks with a copy of a parameter divide it in the
  // same way (group_plan.h).
  struct Classes {
    std::vector<int> tied, replicated, others;
  };
  std::vector<int>& ClassOf(int parameter, Classes& classes) const {
    if (model_.boxes().empty()) return classes.others;
    const PartParameter& box = model_.boxes()[static_cast<size_t>(parameter)];
    if (box.tied) return classes.tied;
    return box.replicated ? classes.replicated : classes.others;
  }

  // The number of elements of the largest of the boxes into which tensor ranks divide the whole parameter. All ranks
  // compute the same number.
  int64_t LargestBox(int index) const {
    if (model_.boxes().empty() || model_.IsWhole(index)) return SizeOf(model_, index);
    const int number = model_.boxes()[static_cast<size_t>(index)].number;
    const ParameterDescription& whole = model_.description().parameters[static_cast<size_t>(number)];
    int64_t size = 1;
    for (const int64_t side : whole.shape) size *= side;
    const int64_t boxes = whole.split.parts * model_.part().tensor_size;
    return (size + boxes - 1) / boxes;
  }

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
  // Earlier parts of the model may have parameters that are trained, so the gradient must reach those parts.
  if (!model.boxes().empty() && !model.part().embeds) return 1;
  for (size_t u = 0; u < model.units().size(); ++u) {
    const Unit& unit = model.units()[u];
    for (int i = unit.first_parameter; i < unit.first_parameter + unit.num_parameters; ++i) {
      if (IsTrained(model, i) && (u > 0 || model.FeedsUnits(i))) return std::max(static_cast<int>(u), 1);
    }
  }
  return static_cast<int>(model.units().size());
}

}  // namespace trainyard
