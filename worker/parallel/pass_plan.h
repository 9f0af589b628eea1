// The actions of a pass over a sharded model as data: gathers, computation, frees and reductions in one list. A rank
// that computes and a rank that has nothing to compute carry out the same list, so their collectives cannot diverge.
// The list can be printed; tests compare it with golden text. Pure.
//
//   gather 0, wait-gather 0, gather 1, forward 0, wait-gather 1, gather 2, forward 1, free 1, ...
//
// Unit 0 is the root, which is used from the beginning of a pass to its end. Forward runs the other units in order of
// their index, backward in reverse order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/defaults.h"

namespace trainyard {

// kReshard also frees a unit, but stores a part of it, from which kRegather gathers it again among fewer ranks.
enum class UnitAct { kGather, kWaitGather, kForward, kFree, kReshard, kRegather, kBackward, kReduce, kWaitReduce };

struct UnitAction {
  UnitAct act;
  int unit = 0;
  bool operator==(const UnitAction&) const = default;
};

struct PassPlanOptions {
  bool overlap = true;                // false: waits for each operation right after its start; prefetches nothing
  bool reshard_after_forward = true;  // false: parameters stay gathered between forward and backward
  bool reduce = true;                 // false: gradients are not reduced; another micro-batch adds to them
  int64_t prefetch_elements = -1;     // limit of what is gathered ahead; -1: one unit
  int64_t reuse_elements = 0;         // a unit stays gathered if at most this many elements come before its next use
  int64_t max_live_elements = defaults::kMaxLiveElements;  // limits prefetching and keeping; the root does not count
  bool reshards = false;                                   // units freed between forward and backward are resharded
  int first_backward = 1;                                  // units below it, except the root, take no part in backward
  std::vector<bool> trained = {};                          // by unit: it has gradients to reduce; empty: all
};

// `unit_elements[u]` is the size of unit u, [0] that of the root; a unit of size 0 has nothing to gather, free or
// reduce. REQUIRES: not empty.
std::vector<UnitAction> PlanPass(const std::vector<int64_t>& unit_elements, bool with_backward,
                                 const PassPlanOptions& options);

// The number of slots (slot_pool.h) with which `plan` never waits for a slot. A unit except the root needs one while it
// is gathered and, if `gradients_in_slots`, another one for its gradients from its backward until they are reduced.
// `trained`: as in PassPlanOptions.
int PlanSlots(const std::vector<UnitAction>& plan, bool gradients_in_slots, const std::vector<bool>& trained = {});

// "gather 1, wait-gather 1, forward 1, free 1"
std::string ToString(const std::vector<UnitAction>& plan);

}  // namespace trainyard
