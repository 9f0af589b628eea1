#include "client/plan_view.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/text.h"
#include "common/plural.h"
#include "planner/decision_tree.h"
#include "planner/dimensions.h"
#include "spec/memory_plan.h"

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
  if (seconds >= 100) return DurationText(absl::Seconds(seconds));
  return seconds < 1 ? absl::StrFormat("%.3g ms", 1e3 * seconds) : absl::StrFormat("%.3g s", seconds);
}

// As machines files and data sheets give it.
std::string GigabytesText(uint64_t bytes) { return absl::StrFormat("%.4g GB", static_cast<double>(bytes) / 1e9); }

std::string RateText(double bytes_per_s) { return absl::StrFormat("%.4g GB/s", bytes_per_s / 1e9); }

std::string RanksOf(const planner::Layout& layout) { return Plural(layout.ranks, "rank"); }

// " (16 of the 24 ranks of pod stay unused)".
std::string UnusedText(const planner::Layout& layout, const planner::Pool& pool) {
  const uint64_t all = pool.ranks();
  if (layout.ranks >= all) return "";
  return absl::StrCat(" (", all - layout.ranks, " of the ", all, " ranks of ", pool.name, " stay unused)");
}

std::string PoolText(const planner::Pool& pool) {
  const bool is_gpu = pool.device == v1::DEVICE_CUDA;
  std::string text =
      absl::StrCat(pool.name, " (", is_gpu ? "gpu" : "cpu", "): ", Plural(pool.hosts, "host"), " x ",
                   Plural(pool.ranks_per_host, "rank"), ", ", BytesText(pool.usable_bytes()), " usable for each (of ",
                   GigabytesText(pool.memory_bytes), "), ", RateText(pool.inside.bytes_per_s), " within a host");
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
    // Of the rank that has the most.
    const uint64_t share = layout.micro * planner::RoundsOf(layout, plan.work.global);
    const bool is_equal = share * layout.data_ranks() == plan.work.global;
    shape[0] = share * layout.data_ranks();
    shape = planner::SplitSamples(shape, layout.data_ranks());
    absl::StrAppend(&text, is_equal ? " -> " : " -> at most ", planner::ShapeText(shape));
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
  const bool offloads = std::any_of(plan.layouts.begin(), plan.layouts.end(),
                                    [](const planner::PlannedLayout& planned) { return planned.memory.host > 0; });
  if (offloads) rows[0].push_back("HOST MEMORY");
  if (pools.size() > 1) rows[0].push_back("MACHINES");
  for (size_t i = 0; i < plan.layouts.size(); ++i) {
    const planner::PlannedLayout& planned = plan.layouts[i];
    rows.push_back({absl::StrCat(i + 1), planner::LayoutName(planned.layout), absl::StrCat(planned.layout.ranks),
                    planner::BatchName(planned.layout, plan.work.global), StepText(planned.cost.seconds),
                    Amount(planned.tokens_per_s), BytesText(planned.needed_bytes),
                    ShareText(planned.cost.communication_share()), ShareText(planned.bubble)});
    const uint64_t host_bytes = planner::HostBytes(pools[planned.pool], planned.layout, planned.memory);
    if (offloads) rows.back().push_back(BytesText(host_bytes));
    if (pools.size() > 1) rows.back().push_back(pools[planned.pool].name);
  }
  return Table(rows, columns);
}

// All layouts, each of which is either listed or counted by a reason.
uint64_t CountConsidered(const planner::JobPlan& plan) {
  uint64_t count = plan.layouts.size();
  for (const planner::Rejection& rejection : plan.rejected) count += rejection.count;
  return count;
}

std::string RejectedText(const planner::JobPlan& plan, int columns) {
  const uint64_t all = CountConsidered(plan);
  uint64_t left = all - plan.layouts.size();
  std::string text =
      Wrapped(absl::StrCat(Plural(all, "layout"), " considered (the time of ", plan.candidates,
                           " predicted, the memory of ", plan.memory_plans, " planned): ", plan.layouts.size(),
                           " listed, ", left, " not chosen", left == 0 ? "" : ". Of these"),
              columns);
  const size_t shown = std::min(plan.rejected.size(), kRejectionsShown);
  for (size_t i = 0; i < shown; ++i) {
    const planner::Rejection& rejection = plan.rejected[i];
    const std::vector<std::string> lines = absl::StrSplit(rejection.reason, '\n');
    absl::StrAppend(&text, Wrapped(absl::StrCat(rejection.count, " ", lines[0]), columns, "  "));
    left -= rejection.count;
  }
  if (shown < plan.rejected.size()) {
    const std::string others = Plural(plan.rejected.size() - shown, "other reason");
    absl::StrAppend(&text, Wrapped(absl::StrCat(left, " have ", others, ", which --json lists"), columns, "  "));
  }
  return text;
}

// Whether the cost model has come to the same result as the decision tree. A difference is no error.
std::string TreeVerdict(const planner::JobPlan& plan) {
  if (plan.layouts.empty()) return "";
  if (plan.tree_agrees) return "; the layout above agrees";
  const auto other = std::find_if(
      plan.layouts.begin(), plan.layouts.end(),
      [&plan](const planner::PlannedLayout& planned) { return planner::Agrees(plan.tree, planned.layout); });
  if (other == plan.layouts.end()) return "; the cost model differs: no layout above is one of these";
  return absl::StrCat("; the cost model differs: the first of these above, ", planner::LayoutName(other->layout),
                      " on ", RanksOf(other->layout), ", takes ", StepText(other->cost.seconds), " instead of ",
                      StepText(plan.layouts[0].cost.seconds));
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
          {"bubble_share", planned.bubble},
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
  const std::string more =
      plan.enough_ranks == 0
          ? "more ranks"
          : absl::StrCat(Plural(plan.enough_ranks, "rank"), " on ",
                         Plural(plan.enough_ranks / pool.ranks_per_host, "host"),
                         " of this kind (with fsdp and recompute blocks",
                         plan.enough_ranks <= plan.work.global
                             ? ""
                             : absl::StrCat(", and train.batch.global ", plan.enough_ranks, " or more"),
                         ")");
  std::vector<std::string> advice = {more, "shorter sequences (train.batch.length)", "a smaller model"};
  if (plan.work.param_bytes > 2) advice.emplace_back("16-bit types (train.precision)");
  return absl::StrCat("no layout fits on these machines: the nearest, ", planner::LayoutName(nearest.layout), " on ",
                      RanksOf(nearest.layout), " of ", pool.name, ", needs ", need, "; use ",
                      absl::StrJoin(advice, ", or "));
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
    const std::string title = absl::StrCat("Recommended: ", planner::LayoutName(best.layout), " on ",
                                           RanksOf(best.layout), UnusedText(best.layout, pools[best.pool]));
    absl::StrAppend(&text, Wrapped(title, columns), Wrapped(best.reason, columns, "  "),
                    Wrapped(divides, columns, "  "), "\n", LayoutRows(plan, pools, columns), "\n");
  }
  absl::StrAppend(
      &text,
      Wrapped(absl::StrCat("Decision tree, case ", plan.tree.leaf, ": ", planner::AlternativesText(plan.tree),
                           ", because ", plan.tree.reason, TreeVerdict(plan)),
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
                                {"considered", CountConsidered(plan)},
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
                      {"host_bytes", plan.nearest[0].host_bytes},
                      {"enough_ranks", plan.enough_ranks}};
  }
  return out;
}

}  // namespace trainyard::client
