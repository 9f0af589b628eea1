// Runs ranks as threads of one test, over shared memory.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "common/status_macros.h"
#include "tests/parity/stores.h"
#include "worker/collectives/group.h"
#include "worker/mesh/mesh.h"
#include "worker/parallel/data_parallel.h"

namespace trainyard {

struct ThreadRank {
  const Mesh& mesh;
  MeshGroups& groups;
  int rank = 0;

  int reshard_to = 0;  // size of the reshard groups; 0: there are none

  MeshCommunicators communicators() const { return CommunicatorsOf(groups, reshard_to > 0); }
};

// Runs `main` on every rank. A rank that fails ends the others and fails the test.
inline void OnThreads(const MeshShape& shape, const std::function<absl::Status(const ThreadRank&)>& main,
                      int reshard_to = 0) {
  const int world = shape.dp_replicate * shape.dp_shard;
  const Mesh mesh = *Mesh::Create(shape, world);
  MemoryStore store;
  std::vector<absl::Status> results(world);
  std::vector<std::thread> threads;
  auto run = [&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(auto groups, JoinMesh(mesh, reshard_to, {.world_size = world, .rank = rank, .store = &store}));
    absl::Status status = main({mesh, *groups, rank, reshard_to});
    if (!status.ok()) groups->world->Abort("a rank of the test failed");
    RETURN_IF_ERROR(status);
    return groups->world->Barrier()->Wait();
  };
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      results[rank] = run(rank);
      if (!results[rank].ok()) store.EndGeneration();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < world; ++rank) EXPECT_TRUE(results[rank].ok()) << "rank " << rank << ": " << results[rank];
}

}  // namespace trainyard
