#include "coordinator/policy/hang_blame.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plural.h"
#include "coordinator/policy/channel_wait.h"

namespace trainyard {
namespace {

constexpr size_t kMaxListed = 3;  // ranks, hosts or groups in a sentence

using Ranks = std::vector<const RankPosition*>;
using RanksByName = std::map<std::string, Ranks>;

bool Contains(const Ranks& ranks, const RankPosition* rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

const v1::CommunicatorReport* FindCommunicator(const RankPosition& rank, const std::string& name) {
  for (const v1::CommunicatorReport& communicator : rank.communicators) {
    if (communicator.name() == name) return &communicator;
  }
  return nullptr;
}

// Returns, for each communicator in which a rank waits, the ranks that have started fewer operations of it than others.
// They have left out an operation or have not reached it yet.
RanksByName FindBehind(const Ranks& fresh) {
  std::map<std::string, uint64_t> newest;
  for (const RankPosition* rank : fresh) newest[Waiting(*rank)->name()];
  for (const RankPosition* rank : fresh) {
    for (const v1::CommunicatorReport& communicator : rank->communicators) {
      auto known = newest.find(communicator.name());
      if (known != newest.end()) known->second = std::max(known->second, communicator.started());
    }
  }
  RanksByName behind;
  for (const RankPosition* rank : fresh) {
    for (const v1::CommunicatorReport& communicator : rank->communicators) {
      auto known = newest.find(communicator.name());
      if (known != newest.end() && communicator.started() < known->second) behind[known->first].push_back(rank);
    }
  }
  return behind;
}

// The ranks at which the chains of waits end, by what holds these ranks up.
struct Ends {
  Ranks wrong;         // have left out an operation
  Ranks undelivered;   // wait in an operation that others have completed
  RanksByName inside;  // by communicator, all members of which wait in the same operation
  RanksByName mixed;   // by communicator, the members of which wait in different operations under the same number
};

void Classify(const RankPosition* rank, const Ranks& fresh, const RanksByName& behind, Ends& ends) {
  const v1::CommunicatorReport& own = *Waiting(*rank);
  bool completed = false, all_inside = true, same = true;
  size_t others = 0;
  for (const RankPosition* other : fresh) {
    const v1::CommunicatorReport* report = other == rank ? nullptr : FindCommunicator(*other, own.name());
    if (report == nullptr) continue;
    ++others;
    completed |= report->completed() > own.completed();
    all_inside &= !report->waits_in().empty() && report->started() == own.started();
    same &= report->last_started() == own.last_started();
  }
  if (completed) {
    ends.undelivered.push_back(rank);
  } else if (others > 0 && all_inside) {
    (same ? ends.inside : ends.mixed)[own.name()].push_back(rank);
  } else if (std::any_of(behind.begin(), behind.end(), [&](const auto& at) { return Contains(at.second, rank); })) {
    ends.wrong.push_back(rank);
  } else {
    ends.inside[own.name()].push_back(rank);
  }
}

Ends FindEnds(const Ranks& fresh, const RanksByName& behind) {
  Ends ends;
  for (const RankPosition* rank : fresh) {
    const auto own = behind.find(Waiting(*rank)->name());
    const bool waits_for_another = own != behind.end() && !Contains(own->second, rank);
    if (!waits_for_another) Classify(rank, fresh, behind, ends);
  }
  return ends;
}

void BlameWrong(const Ranks& wrong, const RanksByName& behind, Blame& blame) {
  blame.culprits = wrong;
  std::set<std::string> held_up;  // communicators in which a culprit is behind
  for (const auto& [name, ranks] : behind) {
    const bool any = std::any_of(wrong.begin(), wrong.end(), [&](const auto* rank) { return Contains(ranks, rank); });
    if (any) held_up.insert(name);
  }
  std::erase_if(blame.waiting, [&](const RankPosition* rank) {
    return !held_up.contains(Waiting(*rank)->name()) || Contains(wrong, rank);
  });
  FindOperation(blame);
  blame.mismatch = Waiting(*wrong.front())->waits_in();
}

void BlameMinority(const Ranks& members, Blame& blame) {
  RanksByName by_operation;
  for (const RankPosition* rank : members) by_operation[Waiting(*rank)->last_started()].push_back(rank);
  // The majority is correct; in a tie, the ranks that include the lowest rank are correct.
  auto majority = std::max_element(by_operation.begin(), by_operation.end(), [](const auto& a, const auto& b) {
    if (a.second.size() != b.second.size()) return a.second.size() < b.second.size();
    return a.second.front()->rank > b.second.front()->rank;
  });
  blame.waiting = majority->second;
  blame.operation = majority->first;
  for (const auto& [operation, ranks] : by_operation) {
    if (operation == majority->first) continue;
    if (blame.mismatch.empty()) blame.mismatch = operation;
    blame.culprits.insert(blame.culprits.end(), ranks.begin(), ranks.end());
  }
  std::sort(blame.culprits.begin(), blame.culprits.end(),
            [](const RankPosition* a, const RankPosition* b) { return a->rank < b->rank; });
}

// Describes ranks that wait for each other in a cycle: they run their operations in different orders.
std::string DescribeMutualWait(const Ranks& fresh) {
  std::vector<std::string> waits;
  for (const RankPosition* rank : fresh) {
    const v1::CommunicatorReport& communicator = *Waiting(*rank);
    waits.push_back(absl::StrCat("rank ", rank->rank, " on ", rank->host, WaitVerb(communicator),
                                 communicator.waits_in(), " of ", communicator.name()));
  }
  return absl::StrCat("the ranks wait for each other in ", DescribePosition(*fresh.front()), ": ",
                      JoinFirst(waits, kMaxListed));
}

std::string DescribeUndelivered(const Ranks& ranks) {
  const RankPosition& first = *ranks.front();
  const v1::CommunicatorReport& communicator = *Waiting(first);
  return absl::StrCat(RankList(ranks), ranks.size() == 1 ? " waits in " : " wait in ", communicator.waits_in(), " of '",
                      communicator.name(), "' in ", DescribePosition(first),
                      ", although the other ranks have done their part: data does not arrive over the network at ",
                      first.host);
}

// Describes a communicator in which all of its members (`ranks`) wait. `of_all`: its members are all ranks of the
// group.
std::string DescribeInside(const Ranks& ranks, const std::string& name, bool of_all) {
  const v1::CommunicatorReport& report = *Waiting(*ranks.front());
  const bool is_channel = IsChannelWait(report.waits_in());
  std::set<std::string> hosts;
  for (const RankPosition* rank : ranks) hosts.insert(rank->host);
  std::vector<std::string> names(hosts.begin(), hosts.end());
  const size_t shown = names.size() > kMaxListed + 1 ? kMaxListed : names.size();
  return absl::StrCat(
      of_all ? absl::StrCat("all ", ranks.size(), " ranks") : RankList(ranks),
      is_channel ? " exchange " : " are inside ", is_channel ? report.last_started() : report.waits_in(),
      of_all ? "" : absl::StrCat(" of '", name, "'"), " in ", DescribePosition(*ranks.front()),
      ", and none of them is stopped: data between ",
      names.size() == 1 ? absl::StrCat("the ranks on ", names.front()) : JoinFirst(names, shown, " and "),
      " does not arrive over the network");
}

std::string DescribeNetwork(const Ends& ends, const Ranks& fresh) {
  std::vector<std::string> texts;
  if (!ends.undelivered.empty()) texts.push_back(DescribeUndelivered(ends.undelivered));
  size_t blocked = ends.undelivered.size();
  for (const auto& [name, ranks] : ends.inside) {
    blocked += ranks.size();
    texts.push_back(DescribeInside(ranks, name, ranks.size() == fresh.size()));
  }
  std::string text = JoinFirst(texts, kMaxListed, "; ");
  if (const size_t others = fresh.size() - blocked; others > 0) {
    absl::StrAppend(&text, "; ", Plural(others, "other rank waits", "other ranks wait"), " for them");
  }
  return text;
}

}  // namespace

const v1::CommunicatorReport* Waiting(const RankPosition& rank) {
  for (const v1::CommunicatorReport& communicator : rank.communicators) {
    if (!communicator.waits_in().empty()) return &communicator;
  }
  return nullptr;
}

void FindOperation(Blame& blame) {
  std::set<std::string> of_culprits;
  for (const RankPosition* culprit : blame.culprits) {
    for (const v1::CommunicatorReport& communicator : culprit->communicators) of_culprits.insert(communicator.name());
  }
  const auto is_direct = [&](const RankPosition* rank) { return of_culprits.contains(Waiting(*rank)->name()); };
  const bool any_direct = std::any_of(blame.waiting.begin(), blame.waiting.end(), is_direct);
  blame.first_waiting = nullptr;
  for (const RankPosition* rank : blame.waiting) {
    if (any_direct && !is_direct(rank)) continue;
    if (blame.first_waiting != nullptr && Waiting(*rank)->started() <= Waiting(*blame.first_waiting)->started())
      continue;
    blame.first_waiting = rank;
  }
  if (blame.first_waiting != nullptr) blame.operation = Waiting(*blame.first_waiting)->waits_in();
}

void BlameByOperations(const Ranks& fresh, Blame& blame) {
  const RanksByName behind = FindBehind(fresh);
  const Ends ends = FindEnds(fresh, behind);
  if (!ends.wrong.empty()) return BlameWrong(ends.wrong, behind, blame);
  if (!ends.mixed.empty()) return BlameMinority(ends.mixed.begin()->second, blame);
  const bool network = !ends.undelivered.empty() || !ends.inside.empty();
  blame.text = network ? DescribeNetwork(ends, fresh) : DescribeMutualWait(fresh);
}

const char* WaitVerb(const v1::CommunicatorReport& communicator) {
  return absl::StartsWith(communicator.waits_in(), "room ") ? " waits for " : " waits in ";
}

std::string RankList(const Ranks& ranks) {
  std::vector<std::string> names;
  for (const RankPosition* rank : ranks) names.push_back(absl::StrCat(rank->rank, " on ", rank->host));
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", JoinFirst(names, kMaxListed));
}

std::string DescribePosition(const RankPosition& rank) {
  if (rank.phase == Phase::kEvaluate) return absl::StrCat("the evaluation after step ", rank.last_step);
  if (rank.phase == Phase::kSave) return absl::StrCat("the save after step ", rank.last_step);
  if (rank.phase == Phase::kLeaving) return absl::StrCat("the end after step ", rank.last_step);
  return absl::StrCat("step ", rank.last_step + 1);
}

}  // namespace trainyard
