// Groups of ranks and what they talk through: shared memory among the ranks of one place, gloo between places, both
// together where several places have as many ranks each; see ChooseTransport.
//
//   GroupOptions options{.world_size = 4, .rank = 2, .store = &link, .host = "a", .address = "10.0.0.7"};
//   ASSIGN_OR_RETURN(auto groups, JoinMesh(mesh, /*reshard_to=*/0, options));
//   groups->shard->AllGather(unit, mine);
//
// Threads: made by one thread; the communicators as said there.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/key_value_store.h"
#include "worker/collectives/communicator.h"
#include "worker/collectives/metered_communicator.h"
#include "worker/mesh/mesh.h"

namespace trainyard {

enum class Transport { kSingle, kShared, kGloo, kHostwise };
const char* TransportName(Transport transport);  // "shared memory"

// Pure. `places` by rank of the group; ranks of the same place can share memory. kHostwise: several places, each with
// as many ranks, more than one, that stand side by side.
Transport ChooseTransport(const std::vector<std::string>& places);

// Where this process runs, for ChooseTransport: host (the daemon's name for it, so that two daemons of one machine
// count as two hosts), boot, and namespace of process ids, which shared memory is found by.
std::string ThisProcessPlace(absl::string_view host);

// Where the ranks compute, if not on CPUs.
struct GroupDevice {
  at::Device device;
  std::string name;  // of the very device, the same in every process that uses it and on no other host
  // Makes a communicator of the device, of this rank of `size`; `prefix` goes before its names in the store. Asked only
  // where no two members share a device.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(int rank, int size, const std::string& prefix)> join;
};

struct GroupOptions {
  std::string name = "world";  // of the group; with its first member it goes before its names in the store
  // Ranks of the world, in the group's order; empty: all.
  std::vector<int> members = {};
  int world_size = 1;
  int rank = 0;                    // of the world; one of the members
  KeyValueStore* store = nullptr;  // not owned; asked only while groups are made. May be null in a group of one
  std::string host = "localhost";
  std::string place = {};             // empty: ThisProcessPlace(host)
  std::string address = "127.0.0.1";  // of this host, that the peers can reach
  bool shared_memory = true;          // false: gloo alone; the same on every rank
  absl::Duration timeout = absl::Minutes(30);
  size_t piece_bytes = size_t{1} << 20;  // of shared memory, and of sums from place to place
  // Unset: tensors lie in host memory. Else those on this rank's device go from device to device, or, where two ranks
  // of the group share one, through host memory. Set on every rank or on none.
  std::optional<GroupDevice> device = {};
};

// Pure: how a group is called where people read it: "world", "shard of ranks 0-3", "replicate of ranks 0-6 by 2".
std::string GroupLabel(absl::string_view name, const std::vector<int>& members, int world_size);

// Returns when all members have come; ranks of the group are places in `members`. All members decide alike, by the
// places they tell each other through the store. Possible errors: InvalidArgument for members that cannot be; those of
// the store and of the communicators, with the group's name.
absl::StatusOr<std::unique_ptr<Communicator>> NewGroup(const GroupOptions& options);

// The groups of a data-parallel mesh. Equal groups are one communicator, so that their operations have one order; a
// group of one is never on a wire. Their names are labels.
struct MeshGroups {
  // In the order in which they were made, the world first: warm up, attach to the AbortSwitch and meet in this order.
  std::vector<std::unique_ptr<MeteredCommunicator>> owned;
  MeteredCommunicator* world = nullptr;
  MeteredCommunicator* data = nullptr;       // the data ranks
  MeteredCommunicator* shard = nullptr;      // one copy of the model
  MeteredCommunicator* replicate = nullptr;  // the holders of the same shard
  MeteredCommunicator* reshard = nullptr;    // `reshard_to` neighbours of the shard group
};

// `options` without name and members. `reshard_to` 0: the shard group itself; else it divides the shard axis. Possible
// errors: those of NewGroup; InvalidArgument for a `reshard_to` that cannot be.
absl::StatusOr<std::unique_ptr<MeshGroups>> JoinMesh(const Mesh& mesh, int reshard_to, const GroupOptions& options);

// Pure: the members of the group that JoinMesh calls reshard, in order.
std::vector<int> ReshardPeers(const std::vector<int>& shard_peers, int rank, int reshard_to);

}  // namespace trainyard
