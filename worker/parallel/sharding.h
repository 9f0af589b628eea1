// The table of data parallelism: what a strategy replicates and what it shards. Everything else in this folder follows
// from it. Pure.
//
//          parameters  gradients  optimizer state  groups   before use   gradients complete    update
//   ddp    replicated  replicated replicated       buckets  -            all-reduce            everything
//   zero1  replicated  replicated sharded          buckets  -            reduce-scatter or     own shard, then
//                                                                        all-reduce            all-gather
//   zero2  replicated  sharded    sharded          buckets  -            reduce-scatter, the   own shard, then
//                                                                        rest is dropped       all-gather
//   zero3  sharded     sharded    sharded          units    all-gather,  reduce-scatter        own shard
//                                                           then free
//   fsdp   like zero3
//   hsdp   like fsdp over dp_shard; the sums of the shards are all-reduced over dp_replicate
//
// Shards are always divided over the mesh axis dp_shard.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/mesh/mesh.h"

namespace trainyard {

enum class Strategy { kDdp, kZero1, kZero2, kZero3, kFsdp, kHsdp };
const char* StrategyName(Strategy strategy);  // "ddp", as in parallel.data
// Fails with InvalidArgument for any other name than these six; the message lists them.
absl::StatusOr<Strategy> StrategyOf(absl::string_view name);

enum class Sharding { kReplicated, kSharded };
struct StateSharding {
  Sharding parameters = Sharding::kReplicated;
  Sharding gradients = Sharding::kReplicated;
  Sharding optimizer_state = Sharding::kReplicated;
};
StateSharding ShardingOf(Strategy strategy);

// The mesh of a job whose ranks are all data ranks. If `shard` or `replicate` is 0, `world_size` divided by the other
// one is used, but ddp, which shards nothing, uses 1 for `shard`. If both are 0, ddp has {dp_replicate = world_size}
// and the other strategies have {dp_shard = world_size}, except that hsdp needs one of the two. Fails with
// InvalidArgument if the product is not `world_size`, or hsdp is given neither.
absl::StatusOr<MeshShape> DataMesh(Strategy strategy, int world_size, int shard = 0, int replicate = 0);

}  // namespace trainyard
