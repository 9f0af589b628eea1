#include "worker/parallel/sharding.h"

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

struct Row {
  Strategy strategy;
  const char* name;
  StateSharding sharding;
};

constexpr Sharding kR = Sharding::kReplicated;
constexpr Sharding kS = Sharding::kSharded;
// In the order of Strategy. The three values are those of the parameters, the gradients and the optimizer state.
constexpr Row kRows[] = {
    {Strategy::kDdp, "ddp", {kR, kR, kR}},     {Strategy::kZero1, "zero1", {kR, kR, kS}},
    {Strategy::kZero2, "zero2", {kR, kS, kS}}, {Strategy::kZero3, "zero3", {kS, kS, kS}},
    {Strategy::kFsdp, "fsdp", {kS, kS, kS}},   {Strategy::kHsdp, "hsdp", {kS, kS, kS}},
};

}  // namespace

const char* StrategyName(Strategy strategy) { return kRows[static_cast<int>(strategy)].name; }

absl::StatusOr<Strategy> StrategyOf(absl::string_view name) {
  std::string known;
  for (const Row& row : kRows) {
    if (name == row.name) return row.strategy;
    absl::StrAppend(&known, known.empty() ? "" : ", ", row.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' is not a data-parallel strategy; known: ", known));
}

StateSharding ShardingOf(Strategy strategy) { return kRows[static_cast<int>(strategy)].sharding; }

absl::StatusOr<MeshShape> DataMesh(Strategy strategy, int world_size, int shard, int replicate) {
  if (strategy == Strategy::kHsdp && shard == 0 && replicate == 0) {
    return absl::InvalidArgumentError("hsdp needs a size: set parallel.shard or parallel.replicate");
  }
  if (strategy == Strategy::kDdp) {
    if (shard == 0) shard = 1;
  } else if (shard == 0 && replicate == 0) {
    replicate = 1;
  }
  if (shard == 0) shard = replicate > 0 ? world_size / replicate : 0;
  if (replicate == 0) replicate = shard > 0 ? world_size / shard : 0;
  if (shard < 1 || replicate < 1 || shard > world_size || replicate > world_size / shard ||
      shard * replicate != world_size) {
    return absl::InvalidArgumentError(absl::StrCat("shard ", shard, " x replicate ", replicate, " is ",
                                                   int64_t{shard} * replicate, ", but there are ", world_size,
                                                   " ranks"));
  }
  return MeshShape{.dp_replicate = replicate, .dp_shard = shard};
}

}  // namespace trainyard
