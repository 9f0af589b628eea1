#include "client/plan_view.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/text.h"
#include "common/plural.h"
#include "planner/decision_tree.h"
#include "planner/dimensions.h"

namespace trainyard::client {
namespace {

constexpr size_t kRejectionsShown = 6;

// `text` as lines that fit into `columns` (0: no limit), each after `indent`.
std::string Wrapped(absl::string_view text, int columns, absl::string_view indent = "") {
  constexpr int kLeast = 20;
  if (columns <= 0) return absl::StrCat(indent, text, "\n");
  std::string out;
  for (const std::string& line : WrapText(text, std::max(columns - static_cast<int>(indent.size()), kLeast))) {
    absl::StrAppend(&out, indent, line, "\n");
  }
  return out;
}

std::string ShareText(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

std::string StepText(double seconds) {
  return seconds < 1 ? absl::StrFormat("%.3g ms", 1e3 * seconds) : absl::StrFormat("%.3g s", seconds);
}

std::string RateText(double bytes_per_s) { return absl::StrFormat("%.4g GB/s", bytes_per_s / 1e9); }

std::string RanksOf(const planner::Layout& layout) { return Plural(layout.ranks, "rank"); }

std::string PoolText(const planner::Pool& pool) {
  const bool is_gpu = pool.device == v1::DEVICE_CUDA;
  std::string text = absl::StrCat(pool.name, " (", is_gpu ? "gpu" : "cpu", "): ", Plural(pool.hosts, "host"), " x ",
                                  Plural(pool.ranks_per_host, "rank"), ", ", BytesText(pool.usable_bytes()),
                                  " usable for each, ", RateText(pool.inside.bytes_per_s), " within a host");
  if (pool.hosts > 1) {
    absl::StrAppend(&text, " and ", RateText(pool.between.bytes_per_s), " between hosts (",
                    planner::IsFast(pool.between) ? "fast" : "slow", ")");
  }
  return text;
}

// A sample of a classifier has no tokens.
bool HasTokens(const planner::ModelWork& work) { return work.rows_per_sequence > 1; }

// "64 x 2048 tokens", "64 samples".
std::string StepSizeText(const planner::ModelWork& work) {
  if (!HasTokens(work)) return Plural(work.global, "sample");
  return absl::StrCat(work.global, " x ", work.rows_per_sequence, " tokens");
}

// "64 x 2048 -> 8 x 8 x 2048": how the samples of a step are divided among ranks.
std::string ShapesText(const planner::JobPlan& plan, const planner::Layout& layout) {
  planner::BatchShape shape = {plan.work.global, plan.work.rows_per_sequence};
  std::string text = planner::ShapeText(shape);
  if (layout.data_ranks() > 1) {
    shape = planner::SplitSamples(shape, layout.data_ranks());
    absl::StrAppend(&text, " -> ", planner::ShapeText(shape));
  }
  if (layout.sequence && plan.work.rows_per_sequence % layout.tensor == 0) {
    absl::StrAppend(&text, " -> ", planner::ShapeText(planner::SplitAttributes(shape, layout.tensor)));
  }
  return text;
}

std::string LayoutRows(const planner::JobPlan& plan, const std::vector<planner::Pool>& pools, int columns) {
  std::vector<std::vector<std::string>> rows = {{"", "LAYOUT", "RANKS", "MICRO x NUMBER", "STEP",
                                                 HasTokens(plan.work) ? "TOKENS/S" : "SAMPLES/S", "MEMORY",
                                                 "COMMUNICATION", "BUBBLE"}};
  if (pools.size() > 1) rows[0].push_back("MACHINES");
  for (size_t i = 0; i < plan.layouts.size(); ++i) {
    const planner::PlannedLayout& planned = plan.layouts[i];
    rows.push_back({absl::StrCat(i + 1), planner::LayoutName(planned.layout), absl::StrCat(planned.layout.ranks),
                    planner::BatchName(planned.layout, plan.work.global), StepText(planned.cost.seconds),
                    Amount(planned.tokens_per_s), BytesText(planned.needed_bytes),
                    ShareText(planned.cost.communication_share()), ShareText(planned.cost.bubble_share())});
    if (pools.size() > 1) rows.back().push_back(pools[planned.pool].name);
  }
  return Table(rows, columns);
}

std::string RejectedText(const planner::JobPlan& plan, int columns) {
  std::string text = Wrapped(absl::StrCat(Plural(plan.candidates, "layout"), " compared by time, the memory of ",
                                          plan.memory_plans, " planned. Not chosen:"),
                             columns);
  const size_t shown = std::min(plan.rejected.size(), kRejectionsShown);
  for (size_t i = 0; i < shown; ++i) {
    const planner::Rejection& rejection = plan.rejected[i];
    const std::vector<std::string> lines = absl::StrSplit(rejection.reason, '\n');
    absl::StrAppend(&text, Wrapped(absl::StrCat(rejection.count, " ", lines[0]), columns, "  "));
  }
  if (shown < plan.rejected.size()) {
    absl::StrAppend(&text, "  ", AndMore(shown, plan.rejected.size(), "", "reason"), "\n");
  }
  return text;
}

// What the keys of the plan mean for a job that has some of them.
std::string JobKeysText(const planner::LayoutKeys& keys, int columns) {
  if (keys.replaced.empty() && keys.kept.empty()) return "";
  std::string text;
  if (!keys.replaced.empty()) {
    absl::StrAppend(&text, "The job has ", absl::StrJoin(keys.replaced, ", "),
                    ", which the keys below replace: remove them first, or let --write FILE write the whole job. ");
  }
  if (!keys.kept.empty()) absl::StrAppend(&text, "Kept: ", absl::StrJoin(keys.kept, ", "), ".");
  return absl::StrCat("\n", Wrapped(absl::StripTrailingAsciiWhitespace(text), columns));
}

nlohmann::ordered_json LayoutObject(const planner::JobPlan& plan, const std::vector<planner::Pool>& pools,
                                    const planner::PlannedLayout& planned) {
  const planner::Layout& layout = planned.layout;
  const planner::Dimensions dimensions = planner::DimensionsOf(layout);
  return {{"layout", planner::LayoutName(layout)},
          {"machines", pools[planned.pool].name},
          {"ranks", layout.ranks},
          {"stages", layout.stages},
          {"tensor", layout.tensor},
          {"data_ranks", layout.data_ranks()},
          {"micro", layout.micro},
          {"micro_batches", planner::RoundsOf(layout, plan.work.global)},
          {"step_s", planned.cost.seconds},
          {"tokens_per_s", planned.tokens_per_s},
          {"compute_s", planned.cost.compute},
          {"recompute_s", planned.cost.recompute},
          {"communication_s", planned.cost.communication},
          {"hidden_communication_s", planned.cost.hidden},
          {"bubble_s", planned.cost.bubble},
          {"update_s", planned.cost.update},
          {"memory_bytes", planned.needed_bytes},
          {"usable_bytes", pools[planned.pool].usable_bytes()},
          {"host_bytes", planned.memory.host},
          {"dimensions",
           {{"sample", dimensions.sample},
            {"attribute", dimensions.attribute},
            {"parameter", dimensions.parameter},
            {"shards", dimensions.shards}}},
          {"reason", planned.reason},
          {"keys", planner::KeysOfLayout(pools[planned.pool], layout)}};
}

}  // namespace

std::string NothingFits(const planner::JobPlan& plan, const std::vector<planner::Pool>& pools) {
  if (plan.nearest.empty()) return "no layout is possible on these machines";
  const planner::NearMiss& nearest = plan.nearest[0];
  const planner::Pool& pool = pools[nearest.pool];
  // If the device has enough memory, that of the host is too small for what is offloaded.
  const std::string need =
      nearest.needed_bytes > pool.usable_bytes()
          ? absl::StrCat(BytesText(nearest.needed_bytes), " of ", BytesText(pool.usable_bytes()))
          : absl::StrCat(BytesText(nearest.host_bytes), " of ", BytesText(pool.host_memory_bytes), " on each host");
  return absl::StrCat("no layout fits on these machines: the nearest, ", planner::LayoutName(nearest.layout), " on ",
                      RanksOf(nearest.layout), " of ", pool.name, ", needs ", need,
                      "; use more ranks, shorter sequences (train.batch.length), a smaller model or 16-bit types");
}

std::string PlanText(const planner::JobPlan& plan, const std::vector<planner::Pool>& pools, int columns) {
  const planner::ModelWork& work = plan.work;
  const double parameters = static_cast<double>(work.layers) * work.block_parameters + work.root_parameters;
  std::string text = absl::StrCat(Amount(parameters), " parameters, steps of ", StepSizeText(work), "\n");
  for (const planner::Pool& pool : pools) absl::StrAppend(&text, Wrapped(PoolText(pool), columns));
  absl::StrAppend(&text, "\n");
  if (!plan.layouts.empty()) {
    const planner::PlannedLayout& best = plan.layouts[0];
    const std::string divides = absl::StrCat("divides ", planner::DimensionsText(planner::DimensionsOf(best.layout)),
                                             ": ", ShapesText(plan, best.layout));
    absl::StrAppend(&text, "Recommended: ", planner::LayoutName(best.layout), " on ", RanksOf(best.layout), "\n",
                    Wrapped(best.reason, columns, "  "), Wrapped(divides, columns, "  "), "\n",
                    LayoutRows(plan, pools, columns), "\n");
  }
  const char* const verdict = plan.layouts.empty() ? ""
                              : plan.tree_agrees   ? "; the layout above agrees"
                                                   : "; the layout above is faster";
  absl::StrAppend(&text,
                  Wrapped(absl::StrCat("Decision tree, case ", plan.tree.leaf, ": ",
                                       planner::AlternativesText(plan.tree), ", because ", plan.tree.reason, verdict),
                          columns),
                  "\n", RejectedText(plan, columns));
  if (plan.stopped_early) {
    absl::StrAppend(&text, Wrapped("The search reached its limit; a faster layout may exist.", columns));
  }
  if (!plan.layouts.empty()) {
    absl::StrAppend(&text, JobKeysText(plan.job_keys, columns), "\nKeys for the job file:\n",
                    planner::KeysOfLayout(pools[plan.layouts[0].pool], plan.layouts[0].layout));
  }
  return text;
}

nlohmann::ordered_json PlanJson(const planner::JobPlan& plan, const std::vector<planner::Pool>& pools,
                                const std::vector<std::string>& notes) {
  nlohmann::ordered_json layouts = nlohmann::ordered_json::array();
  for (const planner::PlannedLayout& planned : plan.layouts) layouts.push_back(LayoutObject(plan, pools, planned));
  nlohmann::ordered_json rejected = nlohmann::ordered_json::array();
  for (const planner::Rejection& rejection : plan.rejected) {
    rejected.push_back({{"count", rejection.count}, {"reason", rejection.reason}});
  }
  nlohmann::ordered_json machines = nlohmann::ordered_json::array();
  for (const planner::Pool& pool : pools) {
    machines.push_back({{"name", pool.name},
                        {"device", pool.device == v1::DEVICE_CUDA ? "cuda" : "cpu"},
                        {"hosts", pool.hosts},
                        {"ranks_per_host", pool.ranks_per_host},
                        {"usable_bytes", pool.usable_bytes()},
                        {"inside_bytes_per_s", pool.inside.bytes_per_s},
                        {"between_bytes_per_s", pool.between.bytes_per_s}});
  }
  nlohmann::ordered_json out = {{"layouts", layouts},
                                {"rejected", rejected},
                                {"candidates", plan.candidates},
                                {"memory_plans", plan.memory_plans},
                                {"stopped_early", plan.stopped_early},
                                {"tree",
                                 {{"case", plan.tree.leaf},
                                  {"answer", planner::AlternativesText(plan.tree)},
                                  {"reason", plan.tree.reason},
                                  {"agrees", plan.tree_agrees}}},
                                {"one_rank_bytes", plan.facts.whole_bytes},
                                {"replaced_keys", plan.job_keys.replaced},
                                {"kept_keys", plan.job_keys.kept},
                                {"machines", machines},
                                {"notes", notes}};
  if (plan.layouts.empty() && !plan.nearest.empty()) {
    out["nearest"] = {{"layout", planner::LayoutName(plan.nearest[0].layout)},
                      {"ranks", plan.nearest[0].layout.ranks},
                      {"memory_bytes", plan.nearest[0].needed_bytes},
                      {"host_bytes", plan.nearest[0].host_bytes}};
  }
  return out;
}

}  // namespace trainyard::client
