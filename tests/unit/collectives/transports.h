// Worlds whose ranks are threads, over every transport, for tests of process groups.
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

inline absl::Status Expect(bool condition, absl::string_view what) {
  return condition ? absl::OkStatus() : absl::InternalError(absl::StrCat("check failed: ", what));
}

// How the tensors of a simulated device reach other ranks. kNone: the tensors are in host memory. kStaged: they are
// copied through host memory, as for ranks that share a GPU. kDirect: over a path between devices, for which a second
// gloo group is used.
enum class DevicePath { kNone, kStaged, kDirect };

struct TransportCase {
  Transport transport;
  int world;
  DevicePath path = DevicePath::kNone;
};

// A CPU is used as the device.
inline std::optional<GroupDevice> DeviceOf(const TransportCase& test_case, int rank, MemoryStore& store) {
  if (test_case.path == DevicePath::kNone) return std::nullopt;
  const bool shared = test_case.path == DevicePath::kStaged;
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

inline GroupOptions OptionsOf(const TransportCase& test_case, int rank, MemoryStore& store) {
  const bool hostwise = test_case.transport == Transport::kHostwise;
  return {.world_size = test_case.world,
          .rank = rank,
          .store = &store,
          .place = absl::StrCat("place ", hostwise ? rank / 2 : 0),
          .shared_memory = test_case.transport != Transport::kGloo,
          .timeout = absl::Minutes(1),
          .piece_bytes = 4096,
          .device = DeviceOf(test_case, rank, store)};
}

inline std::string NameOf(const TransportCase& test_case) {
  const char* path = test_case.path == DevicePath::kNone     ? ""
                     : test_case.path == DevicePath::kStaged ? "_staged"
                                                             : "_direct";
  return absl::StrCat(absl::StrReplaceAll(TransportName(test_case.transport), {{" ", "_"}}), "_", test_case.world,
                      path);
}

class Transports : public testing::TestWithParam<TransportCase> {
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
