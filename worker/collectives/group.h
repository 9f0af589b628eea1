// Creates process groups and chooses their transport. A place is a set of processes that can share memory (same host,
// boot and process-ID namespace). Ranks of one place use shared memory; ranks of different places use gloo; both are
// used if there are several places that all have the same number of ranks, at least two. See ChooseTransport.
//
//   GroupOptions options{.world_size = 4, .rank = 2, .store = &link, .host = "a", .address = "10.0.0.7"};
//   ASSIGN_OR_RETURN(auto groups, JoinMesh(mesh, /*reshard_to=*/0, options));
//   groups->shard->AllGather(unit, mine);
//
// Threads: one thread creates the groups; for the communicators see communicator.h.
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

// Pure. `places` is indexed by rank of the group; ranks of the same place can share memory. Returns kHostwise for
// several places whose ranks are consecutive and equal in number, with more than one rank each.
Transport ChooseTransport(const std::vector<std::string>& places);

// The place of this process, for ChooseTransport: the host (under the daemon's name for it, so that two daemons on one
// machine count as two hosts), the boot, and the process-ID namespace. A peer finds this process's shared
// memory by its process ID.
std::string ThisProcessPlace(absl::string_view host);

// The device on which this rank computes, if not a CPU.
struct GroupDevice {
  at::Device device;
  std::string name;  // identifies this one device: the same in every process that uses it, different on any other host
  // Creates this rank's communicator of the device, as `rank` of `size`. Its names in the store begin with `prefix`.
  // Called only if no two members share a device.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(int rank, int size, const std::string& prefix)> join;
};

struct GroupOptions {
  // The group's name. Together with the first member it is the prefix of the group's names in the store.
  std::string name = "world";
  // Ranks of the world, in the group's order; empty: all ranks.
  std::vector<int> members = {};
  int world_size = 1;
  int rank = 0;                    // in the world; must be one of the members
  KeyValueStore* store = nullptr;  // not owned; used only while groups are created. May be null in a group of one
  std::string host = "localhost";
  std::string place = {};             // empty: ThisProcessPlace(host)
  std::string address = "127.0.0.1";  // an address of this host that the peers can reach
  bool shared_memory = true;          // false: gloo only; must be the same on every rank
  absl::Duration timeout = absl::Minutes(30);
  size_t piece_bytes = size_t{1} << 20;  // for shared memory, and for sums between places
  // Unset: all tensors are in host memory. Set: tensors on this rank's device are exchanged between devices or, if two
  // ranks of the group share one, through host memory. Must be set on every rank or on none.
  std::optional<GroupDevice> device = {};
};

// Pure: the group's name for users: "world", "shard of ranks 0-3", "replicate of ranks 0-6 by 2".
std::string GroupLabel(absl::string_view name, const std::vector<int>& members, int world_size);

// Returns when all members have joined. A rank of the group is its index in `members`. All members make the same choice
// of transport, from the places that they publish to each other in the store. Possible errors: InvalidArgument for
// invalid members; those of the store and of the communicators, with the group's name.
absl::StatusOr<std::unique_ptr<Communicator>> NewGroup(const GroupOptions& options);

// The groups of a mesh. Equal groups share one communicator, so that their operations have one order; a
// group of one uses no transport. The communicators' names are group labels.
struct MeshGroups {
  // In order of creation, the world first. Code that uses each of them (WarmUp, MonitoredBarrier) keeps this order.
  std::vector<std::unique_ptr<MeteredCommunicator>> owned;
  MeteredCommunicator* world = nullptr;
  MeteredCommunicator* data = nullptr;       // the data ranks that hold the same part of the model
  MeteredCommunicator* shard = nullptr;      // the ranks that together hold one copy of this part of the model
  MeteredCommunicator* replicate = nullptr;  // the ranks that hold the same shard
  MeteredCommunicator* reshard = nullptr;    // `reshard_to` neighbouring ranks of the shard group
  MeteredCommunicator* tensor = nullptr;     // the ranks that divide each layer among them
  // The ranks of the first and the last stage that hold the same part of a tied embedding; null in other stages, and
  // where there is one stage.
  MeteredCommunicator* tied = nullptr;
};

// `options`: name and members are ignored. `reshard_to` 0: the reshard group is the shard group; otherwise it must
// divide the shard axis. Possible errors: those of NewGroup; InvalidArgument for an invalid `reshard_to`.
absl::StatusOr<std::unique_ptr<MeshGroups>> JoinMesh(const Mesh& mesh, int reshard_to, const GroupOptions& options);

// Pure: the members of the reshard group that JoinMesh creates, in order.
std::vector<int> ReshardPeers(const std::vector<int>& shard_peers, int rank, int reshard_to);

}  // namespace trainyard
