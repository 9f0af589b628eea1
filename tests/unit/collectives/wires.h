// Worlds of threads over every transport, for tests of process groups.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"
#include "tests/parity/stores.h"
#include "worker/collectives/group.h"

namespace trainyard {

// Runs `main` as every rank of a world, and returns the first error.
inline absl::Status OnRanks(int world, const std::function<absl::Status(int rank)>& main) {
  std::vector<absl::Status> statuses(static_cast<size_t>(world));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] { statuses[static_cast<size_t>(rank)] = main(rank); });
  }
  for (std::thread& rank : ranks) rank.join();
  for (int rank = 0; rank < world; ++rank) {
    RETURN_IF_ERROR(statuses[static_cast<size_t>(rank)]) << "on rank " << rank;
  }
  return absl::OkStatus();
}

inline absl::Status Expect(bool so, absl::string_view what) {
  return so ? absl::OkStatus() : absl::InternalError(absl::StrCat("check failed: ", what));
}

// What is in front of the transport, as if tensors were on a GPU: nothing; a copy through host memory, as for ranks
// that share a GPU; a direct path between devices, for which a second gloo group is used.
enum class Front { kNone, kStaged, kDevice };

struct Wire {
  Transport transport;
  int world;
  Front front = Front::kNone;
};

// A CPU is used as the device.
inline std::optional<GroupDevice> DeviceOf(const Wire& wire, int rank, MemoryStore& store) {
  if (wire.front == Front::kNone) return std::nullopt;
  const bool shared = wire.front == Front::kStaged;
  return GroupDevice{.device = at::kCPU,
                     .name = shared ? "one" : absl::StrCat("number ", rank),
                     .join = [&store](int rank_of_group, int size, const std::string& prefix) {
                       return NewGlooCommunicator({.rank = rank_of_group,
                                                   .world_size = size,
                                                   .store = &store,
                                                   .prefix = absl::StrCat(prefix, "on device/"),
                                                   .timeout = absl::Minutes(1)});
                     }};
}

inline GroupOptions OptionsOf(const Wire& wire, int rank, MemoryStore& store) {
  const bool hostwise = wire.transport == Transport::kHostwise;
  return {.world_size = wire.world,
          .rank = rank,
          .store = &store,
          .place = absl::StrCat("place ", hostwise ? rank / 2 : 0),
          .shared_memory = wire.transport != Transport::kGloo,
          .timeout = absl::Minutes(1),
          .piece_bytes = 4096,
          .device = DeviceOf(wire, rank, store)};
}

inline std::string NameOf(const Wire& wire) {
  const char* front = wire.front == Front::kNone ? "" : wire.front == Front::kStaged ? "_staged" : "_behind_devices";
  return absl::StrCat(absl::StrReplaceAll(TransportName(wire.transport), {{" ", "_"}}), "_", wire.world, front);
}

class Wires : public testing::TestWithParam<Wire> {
 protected:
  // Runs `main` on every rank with its groups.
  absl::Status Run(const MeshShape& shape, int reshard_to,
                   const std::function<absl::Status(int rank, MeshGroups& groups)>& main) {
    ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create(shape, GetParam().world));
    MemoryStore store;
    return OnRanks(GetParam().world, [&](int rank) -> absl::Status {
      ASSIGN_OR_RETURN(auto groups, JoinMesh(mesh, reshard_to, OptionsOf(GetParam(), rank, store)));
      for (auto& group : groups->owned) RETURN_IF_ERROR(WarmUp(*group)) << group->name();
      absl::Status status = main(rank, *groups);
      RETURN_IF_ERROR(status);
      return groups->world->MonitoredBarrier(absl::Minutes(1));  // no rank may leave while a peer still needs it
    });
  }
  absl::Status RunSharded(const std::function<absl::Status(int rank, MeshGroups& groups)>& main) {
    return Run({.dp_shard = GetParam().world}, 0, main);
  }
};

}  // namespace trainyard
