// What a pass over a sharded model does, as data: gathers, computation, frees and reductions in one list. The same list
// is carried out by a rank that computes and by one that has nothing to compute, so collectives can never diverge; it
// can be printed, and tests compare it with golden text. Pure.
//
//   gather 0, wait-gather 0, gather 1, forward 0, wait-gather 1, gather 2, forward 1, free 1, ...
//
// Unit 0 is the root: used from the beginning of a pass to its end. The others run in order of their index forward, and
// the other way round backward.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/defaults.h"

namespace trainyard {

// kReshard frees a unit too, but keeps a part of it, from which kRegather gathers it again among fewer ranks.
enum class UnitAct { kGather, kWaitGather, kForward, kFree, kReshard, kRegather, kBackward, kReduce, kWaitReduce };

struct UnitAction {
  UnitAct act;
  int unit = 0;
  bool operator==(const UnitAction&) const = default;
};

struct PassPlanOptions {
  bool overlap = true;                // false: each operation is waited for where it is started; nothing is prefetched
  bool reshard_after_forward = true;  // false: parameters stay gathered between forward and backward
  bool reduce = true;                 // false: gradients stay where they are, for another micro-batch to add to
  int64_t prefetch_elements = -1;     // gathered ahead at most; -1: one unit
  int64_t reuse_elements = 0;         // a unit whose next use lies at most so many elements away is not freed
  int64_t max_live_elements = defaults::kMaxLiveElements;  // no prefetching and no keeping beyond so many, root apart
  bool keeps_part = false;                                 // what is freed between forward and backward is resharded
  int first_backward = 1;                                  // units below, but for the root, take no part in backward
  std::vector<bool> trained = {};                          // by unit: it has gradients to reduce; empty: all
};

// `unit_elements[u]` is the size of unit u, [0] that of the root; one of 0 has nothing to
// gather, free or reduce. REQUIRES: not empty.
std::vector<UnitAction> PlanPass(const std::vector<int64_t>& unit_elements, bool with_backward,
                                 const PassPlanOptions& options);

// Slots (slot_pool.h) that carrying out `plan` takes without waiting for any, the root apart: one a gathered unit, and
// one for the gradients of the unit under way if `gradients_in_slots`. `trained`: as above.
int PlanSlots(const std::vector<UnitAction>& plan, bool gradients_in_slots, const std::vector<bool>& trained = {});

// "gather 1, wait-gather 1, forward 1, free 1"
std::string ToString(const std::vector<UnitAction>& plan);

}  // namespace trainyard
