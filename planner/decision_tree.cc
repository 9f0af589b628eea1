#include "planner/decision_tree.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trainyard::planner {
namespace {

std::string DoesNotFit(const TreeFacts& facts) {
  return absl::StrCat("the model does not fit on one rank (it needs ", NeedText(facts.whole_bytes, facts.usable_bytes),
                      ")");
}

TreeAnswer OfOneHost(const TreeFacts& facts) {
  if (facts.layer_bytes > facts.usable_bytes) {
    return {.leaf = 3,
            .alternatives = {{Strategy::kTensor}, {Strategy::kZero}},
            .with_memory_savings = true,
            .prefers_pipeline = false,
            .reason = absl::StrCat("even the largest layer does not fit on one rank (it needs ",
                                   NeedText(facts.layer_bytes, facts.usable_bytes),
                                   "), so a pipeline alone is not enough: tensor ranks divide the layer, or ZeRO "
                                   "shards it, with recompute and offload")};
  }
  return {
      .leaf = 2,
      .alternatives = {{Strategy::kPipeline}, {Strategy::kZero}, {Strategy::kTensor}},
      .with_memory_savings = false,
      .prefers_pipeline = !facts.fast_inside,
      .reason = absl::StrCat(
          DoesNotFit(facts), ", and all ranks are on one host; ",
          facts.fast_inside ? "on its fast links the three usually take similar times"
                            : "on its slow links a pipeline is usually the fastest, because it exchanges the least")};
}

}  // namespace

std::string StrategyText(Strategy strategy) {
  switch (strategy) {
    case Strategy::kDdp:
      return "DDP";
    case Strategy::kZero:
      return "ZeRO";
    case Strategy::kZero1:
      return "ZeRO-1";
    case Strategy::kPipeline:
      return "pipeline";
    case Strategy::kTensor:
      return "tensor";
  }
  return "";
}

TreeAnswer Decide(const TreeFacts& facts) {
  if (facts.whole_bytes <= facts.usable_bytes) {
    return {
        .leaf = 1,
        .alternatives = {{Strategy::kDdp}, {Strategy::kZero}},
        .with_memory_savings = false,
        .prefers_pipeline = false,
        .reason = absl::StrCat("the model fits on one rank (it needs ", NeedText(facts.whole_bytes, facts.usable_bytes),
                               "), so DDP divides the batch; ZeRO needs less memory and may be faster or slower")};
  }
  if (facts.hosts == 1) return OfOneHost(facts);
  if (facts.fast_between) {
    return {.leaf = 4,
            .alternatives = {{Strategy::kZero}, {Strategy::kPipeline, Strategy::kTensor, Strategy::kDdp}},
            .with_memory_savings = false,
            .prefers_pipeline = false,
            .reason = absl::StrCat(DoesNotFit(facts),
                                   ", and the links between hosts are fast: ZeRO needs no change of the model, and "
                                   "pipeline, tensor and DDP together exchange less")};
  }
  return {.leaf = 5,
          .alternatives = {{Strategy::kDdp, Strategy::kPipeline, Strategy::kTensor, Strategy::kZero1}},
          .with_memory_savings = false,
          .prefers_pipeline = true,
          .reason = absl::StrCat(DoesNotFit(facts),
                                 ", and the links between hosts are slow: tensor within a host, a pipeline across "
                                 "hosts, and DDP with the optimizer state of ZeRO-1 for the rest")};
}

std::string AlternativesText(const TreeAnswer& answer) {
  std::vector<std::string> texts;
  for (const std::vector<Strategy>& combination : answer.alternatives) {
    texts.push_back(absl::StrJoin(combination, " + ",
                                  [](std::string* out, Strategy strategy) { out->append(StrategyText(strategy)); }));
  }
  std::string text = absl::StrJoin(texts, ", or ");
  if (answer.with_memory_savings) absl::StrAppend(&text, ", with recompute and offload");
  return text;
}

bool Agrees(const TreeAnswer& answer, const Layout& layout) {
  const bool divides_model = layout.stages > 1 || layout.tensor > 1;
  if (answer.prefers_pipeline && layout.stages == 1) return false;
  std::vector<Strategy> used;
  if (layout.stages > 1) used.push_back(Strategy::kPipeline);
  if (layout.tensor > 1) used.push_back(Strategy::kTensor);
  if (layout.data_ranks() > 1) {
    switch (layout.data) {
      case v1::DATA_PARALLEL_ZERO1:
        used.push_back(Strategy::kZero1);
        break;
      case v1::DATA_PARALLEL_DDP:
        // Copies of a divided model divide the batch in addition.
        if (!divides_model) used.push_back(Strategy::kDdp);
        break;
      default:
        used.push_back(Strategy::kZero);
    }
  }
  return std::any_of(answer.alternatives.begin(), answer.alternatives.end(), [&used](const auto& combination) {
    return std::all_of(used.begin(), used.end(), [&combination](Strategy strategy) {
      const auto has = [&combination](Strategy wanted) {
        return std::find(combination.begin(), combination.end(), wanted) != combination.end();
      };
      // ZeRO-1 is one of the stages of ZeRO.
      return has(strategy) || (strategy == Strategy::kZero1 && has(Strategy::kZero));
    });
  });
}

}  // namespace trainyard::planner
