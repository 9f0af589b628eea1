// The members of a group that is being created, and the values that they exchange through the store before they are
// connected. Used by group.h and channel.h.
//
// Threads: one thread calls these functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/collectives/group.h"

namespace trainyard {

// A group's options with its members filled in, and this rank's number in the group.
struct GroupMember {
  const GroupOptions& options;  // not owned
  std::vector<int> members;
  int rank = 0;
  std::string prefix = {};  // prefix of the group's names in the store

  int size() const { return static_cast<int>(members.size()); }
};

// Possible errors: InvalidArgument for invalid members or a missing store.
absl::StatusOr<GroupMember> MemberOf(const GroupOptions& options);

// Publishes `own` under a name that contains `what`, and returns the values of all members, by rank of the group.
// Possible errors: those of the store, with the rank whose value is missing.
absl::StatusOr<std::vector<std::string>> Exchange(const GroupMember& member, absl::string_view what,
                                                  absl::string_view own);

// The place of each member (group.h), by rank of the group. Possible errors: those of Exchange.
absl::StatusOr<std::vector<std::string>> ExchangePlaces(const GroupMember& member);

}  // namespace trainyard
