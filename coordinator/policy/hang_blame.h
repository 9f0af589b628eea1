// Finds the ranks for which the others of a stalled group wait, from the operations that all ranks have reported. Part
// of policy/hang. Pure.
#pragma once

#include <string>
#include <vector>

#include "coordinator/policy/hang.h"

namespace trainyard {

// The ranks that the others wait for (`culprits`), these others (`waiting`), and the `operation` in which they wait.
struct Blame {
  std::vector<const RankPosition*> culprits;
  bool stopped_or_silent = false;  // every culprit is stopped or silent
  bool certain = false;            // the result holds, no matter what unreachable ranks would report
  std::vector<const RankPosition*> waiting;
  const RankPosition* first_waiting = nullptr;  // a rank that waits for a culprit directly; null: none
  std::string operation;                        // the operation that the waiting ranks have entered
  std::string mismatch;                         // the operation that the culprits have entered instead; empty: none
  std::string text;                             // the complete description; empty: policy/hang composes one
};

// The communicator in which the rank waits; null: it waits for no other rank.
const v1::CommunicatorReport* Waiting(const RankPosition& rank);

// Sets `operation` to the newest one in which a rank of `waiting` waits for a culprit directly, and `first_waiting` to
// this rank. In a pipeline, other ranks wait for such ranks, and so only indirectly for a culprit.
void FindOperation(Blame& blame);

// REQUIRES: every rank of `fresh` waits for others, and `blame.waiting` has the same ranks. Follows the waits to the
// ranks at their ends, and finds out what holds these ranks up:
// - A rank that has started fewer operations of its communicator than the others has left one out: a culprit.
// - A rank that waits in an operation that others have completed, or in which all members of its communicator wait,
//   has done its part: data does not arrive over the network. It is no culprit, and `text` names all such ranks.
// - If the members have entered different operations under one number, the minority is wrong.
// If the waits have no end, the ranks wait for each other, which `text` says.
void BlameByOperations(const std::vector<const RankPosition*>& fresh, Blame& blame);

// Returns " waits in " or, if the rank waits for a free slot of a channel, " waits for ".
const char* WaitVerb(const v1::CommunicatorReport& communicator);
// "ranks 0 on w1, 2 on w3"
std::string RankList(const std::vector<const RankPosition*>& ranks);
// "step 37"
std::string DescribePosition(const RankPosition& rank);

}  // namespace trainyard
