// One way to divide a job among ranks, as the keys of its job file, and the enumeration of those that are worth
// comparing. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/problems.h"
#include "planner/machines.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::planner {

struct Layout {
  uint64_t ranks = 1;
  uint64_t stages = 1;
  uint64_t tensor = 1;
  uint64_t chunks_per_rank = 1;  // above 1: the schedule interleaved
  v1::DataParallel data = v1::DATA_PARALLEL_DDP;
  uint64_t shard = 0;  // of hsdp; 0: all data ranks
  v1::RecomputeMode recompute = v1::RECOMPUTE_MODE_NONE;
  bool sequence = false;
  bool reduce_every_micro_batch = false;
  bool offload = false;  // the optimizer state, and the parameters if they are sharded, to host memory
  uint64_t micro = 1;    // sequences of a micro-batch

  uint64_t data_ranks() const { return ranks / (stages * tensor); }
  // The data ranks that divide one copy of the sharded state.
  uint64_t shard_ranks() const { return shard > 0 ? shard : data_ranks(); }
  bool operator==(const Layout&) const = default;
};

// Sets the keys of `spec` that a plan decides to those of `layout`: resources.ranks, train.batch.micro and keys of
// `parallel`. Keys without effect in the layout are cleared.
void ApplyLayout(const Layout& layout, v1::JobSpec* spec);

// Turns a job that trains into one of a single rank with micro-batches of one sequence, before it is checked: values of
// the keys that a plan decides are no problem of the plan. Also removes their `positions`. Other jobs stay as they are.
void ResetLayout(v1::JobSpec* spec, Positions* positions);

// Keys of a job by their dotted names.
struct LayoutKeys {
  std::vector<std::string> replaced;  // a plan decides them
  std::vector<std::string> kept;      // the other keys of `parallel`
};
// `offloads`: the plan has chosen offload, so that it also decides parallel.offload.
LayoutKeys LayoutKeysOf(const v1::JobSpec& spec, bool offloads);

// "zero1, 2 stages, tensor 4, recompute blocks": what distinguishes the layout, without numbers of ranks and batches.
std::string LayoutName(const Layout& layout);

// The micro-batches of a step of `global` sequences on the data rank that has the most.
uint64_t RoundsOf(const Layout& layout, uint64_t global);

// "4 x 8": the sequences of a micro-batch, and the micro-batches of each data rank in a step of `global` sequences.
std::string BatchName(const Layout& layout, uint64_t global);

// What the enumeration needs to know of a job.
struct JobFacts {
  uint64_t global = 1;  // sequences of a step
  uint64_t layers = 1;
};

// A choice of ranks, stages and tensor ranks, and its variants in strategy, recompute, schedule and batch. All variants
// process exactly `global` sequences, in equal shares unless they use all ranks of the pool.
struct LayoutCell {
  Layout shape;                  // the other members have their defaults
  std::vector<Layout> variants;  // empty if `refusal` is not
  std::string refusal;           // why the cell has none
};

// The cells for one pool: ranks are all of the pool, half of them, those of one host, one, and the most (whole hosts,
// or ranks of one host) that the batch can be divided among equally; tensor ranks divide those of a host; stages divide
// the rest and are at most kStagesMax.
inline constexpr uint64_t kStagesMax = 64;
std::vector<LayoutCell> EnumerateCells(const Pool& pool, const JobFacts& job);

}  // namespace trainyard::planner
