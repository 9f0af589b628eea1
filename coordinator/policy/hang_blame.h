// Finds the ranks for which the others of a stalled group wait, from the operations that all have reported: a part of
// policy/hang. Pure.
#pragma once

#include <string>
#include <vector>

#include "coordinator/policy/hang.h"

namespace trainyard {

// The ranks that the others wait for, and the operation.
struct Blame {
  std::vector<const RankPosition*> culprits;
  bool stopped_or_silent = false;  // all culprits are
  bool certain = false;            // holds, no matter what unreachable ranks would report
  std::vector<const RankPosition*> waiting;
  const RankPosition* first_waiting = nullptr;  // one that waits for a culprit directly; null: none
  std::string operation;                        // the one that it has entered
  std::string mismatch;                         // the one that the culprits have entered instead; empty: none
  std::string text;                             // the complete description; empty: policy/hang composes one
};

// The communicator in which the rank waits; null: it waits for no other rank.
const v1::CommunicatorReport* Waiting(const RankPosition& rank);

// Sets the newest operation in which a rank of `waiting` waits for a culprit. In a pipeline, other ranks wait for these
// ranks.
void FindOperation(Blame& blame);

// Every one of these ranks waits for others, and `blame` has these ranks in `waiting`. Follows the waits to the ranks
// at their ends, and finds out what holds those up:
// - A rank that has started fewer operations of its communicator than the others has left one out: a culprit.
// - A rank that waits in an operation that others have completed, or in which all members of its communicator wait,
//   has done its part: data does not arrive over the network. It is no culprit, and `text` names these members.
// - If the members have entered different operations under one number, the minority is wrong.
// If the waits have no end, the ranks wait for each other, which `text` says.
void BlameByOperations(const std::vector<const RankPosition*>& fresh, Blame& blame);

// " waits in " or, for room in a channel, " waits for ".
const char* WaitVerb(const v1::CommunicatorReport& communicator);
// "ranks 0 on w1, 2 on w3"
std::string RankList(const std::vector<const RankPosition*>& ranks);
// "step 37"
std::string DescribePosition(const RankPosition& rank);

}  // namespace trainyard
