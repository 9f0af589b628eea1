#include "worker/collectives/group.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/collectives/device_communicator.h"
#include "worker/collectives/group_member.h"
#include "worker/collectives/hostwise_communicator.h"
#include "worker/collectives/peer_communicator.h"
#include "worker/collectives/shared_memory_communicator.h"
#include "worker/collectives/single_communicator.h"

namespace trainyard {
namespace {

// The number of ranks per place (the local size), if it is equal for all places and their ranks are consecutive;
// otherwise 1.
int RanksPerPlace(const std::vector<std::string>& places) {
  size_t local_size = 1;
  while (local_size < places.size() && places[local_size] == places[0]) ++local_size;
  if (places.size() % local_size != 0) return 1;
  std::set<std::string> seen;
  for (size_t first = 0; first < places.size(); first += local_size) {
    if (!seen.insert(places[first]).second) return 1;
    for (size_t i = first; i < first + local_size; ++i) {
      if (places[i] != places[first]) return 1;
    }
  }
  return static_cast<int>(local_size);
}

// The next three functions require more than one member.
absl::StatusOr<std::unique_ptr<PeerCommunicator>> JoinGloo(const GroupMember& member, int rank, int size,
                                                           absl::string_view prefix) {
  return NewGlooPeers({.rank = rank,
                       .world_size = size,
                       .address = member.options.address,
                       .store = member.options.store,
                       .prefix = std::string(prefix),
                       .timeout = member.options.timeout});
}

// `world_ranks`: the ranks, in the world, of the members that share memory, in the order of their local ranks.
absl::StatusOr<std::unique_ptr<PlaceCommunicator>> JoinShared(const GroupMember& member, int rank,
                                                              std::vector<int> world_ranks, absl::string_view prefix) {
  return NewPlaceCommunicator({.rank = rank,
                               .world_size = static_cast<int>(world_ranks.size()),
                               .store = member.options.store,
                               .prefix = std::string(prefix),
                               .timeout = member.options.timeout,
                               .piece_bytes = member.options.piece_bytes,
                               .world_ranks = std::move(world_ranks)});
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinHostwise(const GroupMember& member, int local_size) {
  const int place = member.rank / local_size, local = member.rank % local_size;
  const auto first = member.members.begin() + place * local_size;
  ASSIGN_OR_RETURN(auto inside, JoinShared(member, local, std::vector<int>(first, first + local_size),
                                           absl::StrCat(member.prefix, "inside/", place, "/")));
  ASSIGN_OR_RETURN(auto across, JoinGloo(member, place, member.size() / local_size,
                                         absl::StrCat(member.prefix, "across/", local, "/")));
  return NewHostwiseCommunicator(std::move(inside), std::move(across), member.options.piece_bytes);
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinMember(const GroupMember& member) {
  if (member.size() == 1) return NewSingleCommunicator();
  if (!member.options.shared_memory) return JoinGloo(member, member.rank, member.size(), member.prefix);
  ASSIGN_OR_RETURN(std::vector<std::string> places, ExchangePlaces(member));
  switch (ChooseTransport(places)) {
    case Transport::kSingle:
      return NewSingleCommunicator();
    case Transport::kShared:
      return JoinShared(member, member.rank, member.members, member.prefix);
    case Transport::kHostwise:
      return JoinHostwise(member, RanksPerPlace(places));
    case Transport::kGloo:
      return JoinGloo(member, member.rank, member.size(), member.prefix);
  }
  return absl::InternalError("unknown transport");
}

// Adds to `host`, which works on host memory, a communicator of the devices, unless two ranks share a device.
absl::StatusOr<std::unique_ptr<Communicator>> JoinDevices(const GroupMember& member,
                                                          std::unique_ptr<Communicator> host) {
  const GroupDevice& device = *member.options.device;
  if (member.size() == 1) return NewDeviceCommunicator(device.device, std::move(host), NewSingleCommunicator());
  ASSIGN_OR_RETURN(std::vector<std::string> names, Exchange(member, "device", device.name));
  std::unique_ptr<Communicator> on_device;
  if (std::set<std::string>(names.begin(), names.end()).size() == names.size()) {
    ASSIGN_OR_RETURN(on_device, device.join(member.rank, member.size(), member.prefix));
  }
  return NewDeviceCommunicator(device.device, std::move(host), std::move(on_device));
}

}  // namespace

const char* TransportName(Transport transport) {
  switch (transport) {
    case Transport::kSingle:
      return "one rank";
    case Transport::kShared:
      return "shared memory";
    case Transport::kGloo:
      return "gloo";
    case Transport::kHostwise:
      return "shared memory and gloo";
  }
  return "";
}

Transport ChooseTransport(const std::vector<std::string>& places) {
  if (places.size() <= 1) return Transport::kSingle;
  const int local_size = RanksPerPlace(places);
  if (local_size == static_cast<int>(places.size())) return Transport::kShared;
  return local_size > 1 ? Transport::kHostwise : Transport::kGloo;
}

std::string ThisProcessPlace(absl::string_view host) {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::array<char, 64> pid_namespace{};
  const ssize_t size = readlink("/proc/self/ns/pid", pid_namespace.data(), pid_namespace.size());
  return absl::StrCat(host, " ", boot, " ", absl::string_view(pid_namespace.data(), std::max<ssize_t>(size, 0)));
}

std::string GroupLabel(absl::string_view name, const std::vector<int>& members, int world_size) {
  if (members.empty() || static_cast<int>(members.size()) == world_size) return std::string(name);
  if (members.size() == 1) return absl::StrCat(name, " of rank ", members[0]);
  const int step = members[1] - members[0];
  for (size_t i = 1; i < members.size(); ++i) {
    if (members[i] - members[i - 1] != step) return absl::StrCat(name, " of ranks ", absl::StrJoin(members, ", "));
  }
  return absl::StrCat(name, " of ranks ", members.front(), "-", members.back(),
                      step == 1 ? "" : absl::StrCat(" by ", step));
}

absl::StatusOr<std::unique_ptr<Communicator>> NewGroup(const GroupOptions& options) {
  ASSIGN_OR_RETURN(GroupMember member, MemberOf(options));
  absl::StatusOr<std::unique_ptr<Communicator>> communicator = JoinMember(member);
  if (communicator.ok() && options.device.has_value()) communicator = JoinDevices(member, *std::move(communicator));
  if (communicator.ok()) return communicator;
  const absl::Status& status = communicator.status();
  return absl::Status(
      status.code(),
      absl::StrCat("group '", GroupLabel(options.name, options.members, options.world_size), "': ", status.message()));
}

std::vector<int> ReshardPeers(const std::vector<int>& shard_peers, int rank, int reshard_to) {
  const auto index = std::find(shard_peers.begin(), shard_peers.end(), rank) - shard_peers.begin();
  const auto first = shard_peers.begin() + index / reshard_to * reshard_to;
  return std::vector<int>(first, first + reshard_to);
}

absl::StatusOr<std::unique_ptr<MeshGroups>> JoinMesh(const Mesh& mesh, int reshard_to, const GroupOptions& options) {
  const int shard_size = mesh.Size(Axis::kShard);
  if (reshard_to < 0 || (reshard_to > 0 && shard_size % reshard_to != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("groups of ", reshard_to, " do not divide the ", shard_size, " ranks of the shard axis"));
  }
  auto groups = std::make_unique<MeshGroups>();
  std::map<std::vector<int>, MeteredCommunicator*> communicator_of;
  auto group = [&](absl::string_view name, const std::vector<int>& members) -> absl::StatusOr<MeteredCommunicator*> {
    MeteredCommunicator*& communicator = communicator_of[members];
    if (communicator != nullptr) return communicator;
    GroupOptions group_options = options;
    group_options.name = std::string(name);
    group_options.members = members;
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> inner, NewGroup(group_options));
    communicator = groups->owned
                       .emplace_back(std::make_unique<MeteredCommunicator>(
                           GroupLabel(name, members, options.world_size), std::move(inner)))
                       .get();
    return communicator;
  };
  std::vector<int> all(static_cast<size_t>(options.world_size));
  for (int rank = 0; rank < options.world_size; ++rank) all[static_cast<size_t>(rank)] = rank;
  const std::vector<int> shard = mesh.Peers(options.rank, Axis::kShard);
  ASSIGN_OR_RETURN(groups->world, group("world", all));
  ASSIGN_OR_RETURN(groups->data, group("data", mesh.DataPeers(options.rank)));
  ASSIGN_OR_RETURN(groups->shard, group("shard", shard));
  ASSIGN_OR_RETURN(groups->replicate, group("replicate", mesh.Peers(options.rank, Axis::kReplicate)));
  groups->reshard = groups->shard;
  if (reshard_to > 0) {
    ASSIGN_OR_RETURN(groups->reshard, group("reshard", ReshardPeers(shard, options.rank, reshard_to)));
  }
  ASSIGN_OR_RETURN(groups->tensor, group("tensor", mesh.Peers(options.rank, Axis::kTensor)));
  const std::vector<int> stages = mesh.Peers(options.rank, Axis::kPipeline);
  if (stages.size() > 1 && (options.rank == stages.front() || options.rank == stages.back())) {
    ASSIGN_OR_RETURN(groups->tied, group("tied", {stages.front(), stages.back()}));
  }
  return groups;
}

}  // namespace trainyard
