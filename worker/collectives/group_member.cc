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
    return absl::InvalidArgumentError(
        absl::StrCat("ranks ", absl::StrJoin(member.members, ", "), " are not a valid group for rank ", options.rank,
                     " in a world of ", options.world_size,
                     "; the members must be different ranks of the world, among them this rank"));
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
  auto name = [&](int index) { return absl::StrCat(member.prefix, what, "/", index); };
  RETURN_IF_ERROR(options.store->Put(name(member.rank), own));
  std::vector<std::string> all;
  for (int index = 0; index < member.size(); ++index) {
    // The error names the rank in the world, which users know.
    ASSIGN_OR_RETURN(all.emplace_back(), options.store->Get(name(index), options.timeout),
                     << "while waiting for the " << what << " of rank " << member.members[index]);
  }
  return all;
}

absl::StatusOr<std::vector<std::string>> ExchangePlaces(const GroupMember& member) {
  const GroupOptions& options = member.options;
  return Exchange(member, "place", options.place.empty() ? ThisProcessPlace(options.host) : options.place);
}

}  // namespace trainyard
