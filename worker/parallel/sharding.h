// The one table of data parallelism: what a strategy replicates and what it shards. Everything else in this folder
// follows from it. Pure.
//
//           parameters  gradients  optimizer state   groups    before use         gradients complete       step
//   ddp     replicate   replicate  replicate         buckets   -                  all-reduce               all of it
//   zero1   replicate   replicate  shard             buckets   -                  reduce-scatter or        own shard,
//   then
//                                                                                 all-reduce               all-gather
//   zero2   replicate   shard      shard             buckets   -                  reduce-scatter, rest     own shard,
//   then
//                                                                                 dropped                  all-gather
//   zero3   shard       shard      shard             units     all-gather, free   reduce-scatter           own shard
//   fsdp                                                       after
//   hsdp    as fsdp over dp_shard; the sums of the shards are all-reduced over dp_replicate
//
// Shards always lie over the mesh axis dp_shard.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/mesh/mesh.h"

namespace trainyard {

enum class Strategy { kDdp, kZero1, kZero2, kZero3, kFsdp, kHsdp };
const char* StrategyName(Strategy strategy);  // "ddp", as in parallel.data
// Possible errors: InvalidArgument for a word that is none of the six; the message lists them.
absl::StatusOr<Strategy> StrategyOf(absl::string_view word);

enum class Sharding { kReplicated, kSharded };
struct StateSharding {
  Sharding parameters = Sharding::kReplicated;
  Sharding gradients = Sharding::kReplicated;
  Sharding optimizer_state = Sharding::kReplicated;
};
StateSharding ShardingOf(Strategy strategy);

// The mesh of a job whose ranks are all data ranks. 0 for `shard` or `replicate`: what is left of `world_size`.
// ddp: {dp_replicate = world}; the others {dp_shard = world}; hsdp: as said, at least one of both.
// Possible errors: InvalidArgument when the product is not `world_size`, or hsdp is given neither.
absl::StatusOr<MeshShape> DataMesh(Strategy strategy, int world_size, int shard = 0, int replicate = 0);

}  // namespace trainyard
