#include "worker/parallel/pass_runner.h"

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/parallel/group_plan.h"

namespace trainyard {
namespace {

bool Computes(const UnitAction& action) { return action.act == UnitAct::kForward || action.act == UnitAct::kBackward; }

}  // namespace

std::vector<int> TrainedGroups(const Model& model, const FlatGroups& groups) {
  std::vector<int> trained(model.units().size(), -1);
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g]->trained() || groups[g]->unit() < 0 || groups[g]->is_tied()) continue;
    int& group = trained[static_cast<size_t>(groups[g]->unit())];
    TORCH_CHECK(group < 0, "unit ", groups[g]->unit(), " has two trained groups, but a plan reduces only one");
    group = static_cast<int>(g);
  }
  return trained;
}

PassPlans PlanPasses(const Model& model, const FlatGroups& groups, const DataParallelOptions& options, bool reshards) {
  if (ShardingOf(options.strategy).parameters == Sharding::kReplicated) return {};
  std::vector<int64_t> elements(model.units().size());
  for (const auto& group : groups) {
    if (group->unit() >= 0) elements[group->unit()] += group->layout().total;
  }
  std::vector<bool> trained;
  for (int group : TrainedGroups(model, groups)) trained.push_back(group >= 0);
  auto plan = [&](bool with_backward, bool reduce) {
    return PlanPass(elements, with_backward,
                    {.overlap = options.overlap,
                     .reshard_after_forward = options.reshard_after_forward,
                     .reduce = reduce,
                     .prefetch_elements = options.prefetch_elements,
                     .reuse_elements = options.reuse_elements,
                     .max_live_elements = options.max_live_elements,
                     .reshards = reshards,
                     .first_backward = FirstBackwardUnit(model),
                     .trained = trained});
  };
  return {.evaluation = plan(/*with_backward=*/false, /*reduce=*/false),
          .inner = plan(/*with_backward=*/true, /*reduce=*/false),
          .reducing = plan(/*with_backward=*/true, /*reduce=*/true)};
}

absl::Status PassRunner::Begin(bool with_backward) {
  if (cursor_ < plan_->size()) {  // the previous pass was not finished
    RETURN_IF_ERROR(gatherer_.FreeAll());
  }
  plan_ = with_backward ? &plans_.reducing : &plans_.evaluation;
  cursor_ = 0;
  return absl::OkStatus();
}

absl::Status PassRunner::RunAction(const UnitAction& action) {
  switch (action.act) {
    case UnitAct::kGather:
      return gatherer_.Start(action.unit);
    case UnitAct::kWaitGather:
      return gatherer_.Wait(action.unit);
    case UnitAct::kFree:
      gatherer_.Free(action.unit);
      return absl::OkStatus();
    case UnitAct::kReduce:
      return reducer_.Start(trained_groups_[action.unit]);
    case UnitAct::kWaitReduce:
      return reducer_.Settle(trained_groups_[action.unit]);
    case UnitAct::kReshard:
      gatherer_.Reshard(action.unit);
      return absl::OkStatus();
    case UnitAct::kRegather:
      return gatherer_.StartRegather(action.unit);
    case UnitAct::kForward:
    case UnitAct::kBackward:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status PassRunner::Advance(const UnitAction& computation) {
  while (cursor_ < plan_->size()) {
    const UnitAction action = (*plan_)[cursor_++];
    if (action == computation) return absl::OkStatus();
    if (action.act == UnitAct::kForward) {
      return absl::FailedPreconditionError(absl::StrCat("unit ", model_.units()[computation.unit].name, " runs where ",
                                                        model_.units()[action.unit].name,
                                                        " is next: a model runs its units in the order of units()"));
    }
    RETURN_IF_ERROR(RunAction(action));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("unit ", model_.units()[computation.unit].name, " does not run in the order of units()"));
}

absl::Status PassRunner::RunUpToComputation() {
  const UnitAction free_root{UnitAct::kFree, 0};
  while (cursor_ < plan_->size() && !Computes((*plan_)[cursor_]) && (*plan_)[cursor_] != free_root) {
    RETURN_IF_ERROR(RunAction((*plan_)[cursor_++]));
  }
  return absl::OkStatus();
}

absl::Status PassRunner::RunToEnd(bool waits) {
  while (cursor_ < plan_->size()) {
    const UnitAction action = (*plan_)[cursor_++];
    if (waits || cursor_ < plan_->size() || action.act != UnitAct::kWaitReduce) {
      RETURN_IF_ERROR(RunAction(action));
    }
  }
  return absl::OkStatus();
}

}  // namespace trainyard
