#include "client/layout_view.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/text.h"
#include "common/plural.h"
#include "common/strict_yaml.h"
#include "spec/job_layout.h"

namespace trainyard::client {
namespace {

// Longer lists of ranks are shown as a range.
constexpr uint64_t kRanksListed = 16;
constexpr int kStagesListed = 64;

struct BlockRange {
  int64_t first = 0;
  int64_t end = 0;
};

// The ranges of blocks of the chunks of a stage.
std::vector<BlockRange> BlocksOfStage(const PipelinePlan& plan, int stage) {
  std::vector<BlockRange> ranges;
  int64_t first = 0;
  for (size_t chunk = 0; chunk < plan.blocks.size(); ++chunk) {
    const int64_t end = first + plan.blocks[chunk];
    if (static_cast<int>(chunk) % plan.shape.stages == stage) ranges.push_back({first, end});
    first = end;
  }
  return ranges;
}

std::string RanksOfStage(const JobLayout& layout, uint64_t stage) {
  const uint64_t first = stage * layout.stage_ranks(), end = first + layout.stage_ranks();
  if (layout.stage_ranks() > kRanksListed) return absl::StrCat(first, " to ", end - 1);
  std::string text;
  for (uint64_t rank = first; rank < end; ++rank) {
    if (rank > first) absl::StrAppend(&text, layout.TensorRankOf(rank) == 0 ? " | " : "+");
    absl::StrAppend(&text, rank);
  }
  return text;
}

std::string HoldingsOfStage(const PipelinePlan& plan, int stage) {
  std::vector<std::string> parts;
  if (stage == 0) parts.push_back("embedding");
  for (const BlockRange& range : BlocksOfStage(plan, stage)) {
    parts.push_back(range.end - range.first == 1 ? absl::StrCat("block ", range.first)
                                                 : absl::StrCat("blocks ", range.first, "-", range.end - 1));
  }
  if (stage == plan.shape.stages - 1) parts.push_back("head");
  return absl::StrJoin(parts, ", ");
}

// "auto" for a value that is not decided.
template <typename Enum>
std::string NameOf(Enum value) {
  if (value == 0) return "auto";
  const auto* known = google::protobuf::GetEnumDescriptor<Enum>()->FindValueByNumber(value);
  return known == nullptr ? "unknown" : EnumName(*known);  // a newer coordinator may send other values
}

}  // namespace

std::string StrategyLine(const v1::Job& job) {
  const v1::JobSpec& spec = job.spec();
  if (!spec.has_train()) return "";
  std::string device = NameOf(spec.resources().device());
  for (const v1::ResolvedKey& decision : job.decisions()) {
    if (decision.key() == "resources.device") device = Printable(decision.value(), 40);
  }
  return absl::StrCat(NameOf(spec.parallel().data()), " on ", Plural(spec.resources().ranks(), "rank"), ", ",
                      NameOf(spec.train().precision().param()), ", ", device);
}

std::string LayoutLine(const v1::JobSpec& spec) {
  const JobLayout layout = LayoutOf(spec);
  if (!spec.has_train() || !layout.divides_model()) return "";
  std::string text = absl::StrCat("stages ", layout.stages, " x data ranks ", layout.data_ranks(), " x tensor ",
                                  layout.tensor, " = ", Plural(layout.ranks, "rank"));
  if (layout.tensor > 1 && spec.parallel().sequence()) absl::StrAppend(&text, "; tensor ranks divide the sequence");
  if (layout.stages == 1) return text;
  const PipelinePlan plan = PlanPipeline(spec);
  absl::StrAppendFormat(&text, "; %s, %s, bubble %.1f %%", std::string(ScheduleName(plan.kind)),
                        Plural(static_cast<uint64_t>(plan.shape.micro_batches), "micro-batch", "micro-batches"),
                        100 * plan.bubble);
  return text;
}

std::string LayoutText(const v1::JobSpec& spec) {
  if (!spec.has_train()) return "";
  const JobLayout layout = LayoutOf(spec);
  const PipelinePlan plan = PlanPipeline(spec);
  const v1::Batch& batch = spec.train().batch();
  const uint64_t rounds = static_cast<uint64_t>(plan.shape.micro_batches);
  const bool is_even = batch.micro() * rounds * layout.data_ranks() == batch.global_size();
  const std::string product =
      absl::StrCat("micro x micro-batches x data ranks: ", BatchProduct(batch.micro(), rounds, layout.data_ranks()),
                   is_even ? " = global" : absl::StrCat(", of which global uses ", batch.global_size()), "\n");
  if (!layout.divides_model()) return product;
  std::vector<std::vector<std::string>> rows = {{"STAGE", "HOLDS", "RANKS"}};
  for (int stage = 0; stage < std::min(plan.shape.stages, kStagesListed); ++stage) {
    rows.push_back(
        {absl::StrCat(stage), HoldingsOfStage(plan, stage), RanksOfStage(layout, static_cast<uint64_t>(stage))});
  }
  return absl::StrCat(LayoutLine(spec), "\n", product, Table(rows),
                      plan.shape.stages > kStagesListed
                          ? absl::StrCat("and ", plan.shape.stages - kStagesListed, " more stages\n")
                          : "");
}

nlohmann::ordered_json LayoutJson(const v1::JobSpec& spec) {
  if (!spec.has_train()) return nlohmann::ordered_json::object();
  const JobLayout layout = LayoutOf(spec);
  const PipelinePlan plan = PlanPipeline(spec);
  nlohmann::ordered_json blocks = nlohmann::ordered_json::array();
  for (int stage = 0; stage < plan.shape.stages; ++stage) {
    nlohmann::ordered_json chunks = nlohmann::ordered_json::array();
    for (const BlockRange& range : BlocksOfStage(plan, stage)) {
      chunks.push_back(nlohmann::ordered_json::array({range.first, range.end}));
    }
    blocks.push_back(std::move(chunks));
  }
  return {{"stages", layout.stages},
          {"data_ranks", layout.data_ranks()},
          {"tensor", layout.tensor},
          {"sequence", layout.tensor > 1 && spec.parallel().sequence()},
          {"schedule", std::string(ScheduleName(plan.kind))},
          {"chunks_per_rank", plan.shape.chunks_per_rank},
          {"micro_batches", plan.shape.micro_batches},
          {"bubble_share", plan.bubble},
          {"blocks", blocks}};
}

}  // namespace trainyard::client
