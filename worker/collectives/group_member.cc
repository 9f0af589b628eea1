#include "worker/collectives/group_member.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace trainyard {

absl::StatusOr<GroupMember> MemberOf(const GroupOptions& options) {
  GroupMember member{.options = options, .members = options.members};
  if (member.members.empty()) {
    for (int rank = 0; rank < options.world_size; ++rank) member.members.push_back(rank);
  }
  std::set<int> distinct(member.members.begin(), member.members.end());
  const auto self = std::find(member.members.begin(), member.members.end(), options.rank);
  if (distinct.size() != member.members.size() || distinct.empty() || *distinct.begin() < 0 ||
      *distinct.rbegin() >= options.world_size || self == member.members.end()) {
    return absl::InvalidArgumentError(absl::StrCat("ranks ", absl::StrJoin(member.members, ", "),
                                                   " are not a valid group for rank ", options.rank, " in a world of ",
                                                   options.world_size));
  }
  member.rank = static_cast<int>(self - member.members.begin());
  member.prefix = absl::StrCat(options.name, "/", member.members.front(), "/");
  if (member.size() > 1 && options.store == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("a group of ", member.size(), " needs a key-value store"));
  }
  return member;
}

absl::StatusOr<std::vector<std::string>> Exchange(const GroupMember& member, absl::string_view what,
                                                  absl::string_view own) {
  const GroupOptions& options = member.options;
  auto name = [&](int rank) { return absl::StrCat(member.prefix, what, "/", rank); };
  RETURN_IF_ERROR(options.store->Put(name(member.rank), own));
  std::vector<std::string> all;
  for (int rank = 0; rank < member.size(); ++rank) {
    ASSIGN_OR_RETURN(all.emplace_back(), options.store->Get(name(rank), options.timeout),
                     << "while waiting for the " << what << " of rank " << member.members[rank]);
  }
  return all;
}

absl::StatusOr<std::vector<std::string>> ExchangePlaces(const GroupMember& member) {
  const GroupOptions& options = member.options;
  return Exchange(member, "place", options.place.empty() ? ThisProcessPlace(options.host) : options.place);
}

}  // namespace trainyard
