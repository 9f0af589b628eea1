// Which parameters form which group, how each group is sharded, and which part of it each rank holds, as golden text.
#include "worker/parallel/group_plan.h"
#include "worker/model/model_factory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "worker/parallel/shard_layout.h"

namespace trainyard {
namespace {

constexpr int kRanks = 2;

const char* StateName(Sharding sharding) { return sharding == Sharding::kSharded ? "sharded" : "replicated"; }

// Formats the ranges of each parameter that rank `rank` holds: "rank 0: a [0, 48) b [0, 16)".
std::string Pieces(const Model& model, const GroupPlan& plan, const ShardLayout& layout, int rank) {
  std::string line = absl::StrCat("  rank ", rank, ":");
  for (const ShardPiece& piece : layout.PiecesOf(rank)) {
    absl::StrAppend(&line, " ", model.parameters()[plan.parameters[piece.parameter]].name, " [", piece.range.first,
                    ", ", piece.range.first + piece.range.count, ")");
  }
  return line + "\n";
}

std::string Text(const Model& model, const std::vector<GroupPlan>& plans) {
  std::string text;
  for (const GroupPlan& plan : plans) {
    absl::StrAppend(&text, plan.name, ": ", plan.trained ? "trained" : "frozen");
    if (plan.unit >= 0) absl::StrAppend(&text, ", unit ", plan.unit);
    absl::StrAppend(&text, ", parameters ", StateName(plan.sharding.parameters), ", gradients ",
                    StateName(plan.sharding.gradients), ", optimizer state ", StateName(plan.sharding.optimizer_state),
                    "\n");
    std::vector<int64_t> sizes;
    std::vector<int> order;
    for (int parameter : plan.parameters) {
      const NamedTensor& named = model.parameters()[parameter];
      order.push_back(static_cast<int>(sizes.size()));
      sizes.push_back(named.tensor.numel());
      absl::StrAppend(&text, "  ", named.name, " ", named.tensor.numel(), "\n");
    }
    if (plan.sharding.optimizer_state == Sharding::kReplicated) continue;
    const ShardLayout layout = MakeShardLayout(sizes, order, kRanks);
    for (int rank = 0; rank < kRanks; ++rank) text += Pieces(model, plan, layout, rank);
  }
  return text;
}

struct GroupCase {
  const char* name;
  DataParallelOptions options;
  std::vector<std::string> freeze = {};
};
class GoldenGroups : public testing::TestWithParam<GroupCase> {};
INSTANTIATE_TEST_SUITE_P(Groups, GoldenGroups,
                         testing::Values(GroupCase{"ddp", {.strategy = Strategy::kDdp, .bucket_elements = 2000}},
                                         GroupCase{"zero1", {.strategy = Strategy::kZero1, .bucket_elements = 2000}},
                                         GroupCase{"zero2-frozen",
                                                   {.strategy = Strategy::kZero2, .bucket_elements = 2000},
                                                   {"wte.*", "h.0.*"}},
                                         GroupCase{"fsdp", {.strategy = Strategy::kFsdp}},
                                         GroupCase{"zero3-persist-frozen",
                                                   {.strategy = Strategy::kZero3, .persist_elements = 100},
                                                   {"wpe.*", "h.1.mlp.*"}}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Two blocks and a root. A job with the same options must form the same groups in every release: resumed runs and the
// order of reductions depend on them.
TEST_P(GoldenGroups, MatchTheGoldenText) {
  const auto model = *NewModel({.layers = 2, .heads = 2, .width = 16, .context = 8, .vocabulary = 33}, 1, at::kFloat);
  ASSERT_TRUE(Freeze(GetParam().freeze, *model).ok());
  const std::string groups = Text(*model, PlanGroups(*model, GetParam().options, TrainedInReadyOrder(*model)));
  const std::string path = std::string("tests/golden/groups/") + GetParam().name + ".txt";
  absl::StatusOr<std::string> golden = ReadFile(path);
  ASSERT_TRUE(golden.ok()) << path << " should contain\n" << groups;
  EXPECT_EQ(*golden, groups) << path;
}

}  // namespace
}  // namespace trainyard
