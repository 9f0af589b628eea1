// Whole runs of several ranks, as threads, without a daemon.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/link/fake_link.h"
#include "tests/unit/temporary_folder.h"
#include "tests/unit/trainer/small_job.h"
#include "worker/trainer/run.h"

namespace trainyard {

struct Layout {
  const char* strategy;
  int ranks;
  int shard = 0;
};

struct Ranks {
  FakeStore store;
  std::vector<std::unique_ptr<FakeLink>> links;
  std::vector<std::ostringstream> logs;
  std::vector<TrainerExit> codes;
};

class StrategiesTest : public SmallJobTest {
 protected:
  StartOrder Order(const std::string& run, const Layout& layout, uint64_t steps) {
    StartOrder order = SmallOrder(run, steps);
    order.world_size = order.local_world_size = layout.ranks;
    TrainConfig& config = order.config;
    config.batch_global = 6;
    config.batch_micro = 1;
    config.evaluate_every = 2;
    config.evaluate_batches = 3;
    config.lr_schedule.kind = TrainConfig::LrScheduleKind::kConstant;
    config.parallel.strategy = layout.strategy;
    config.parallel.shard = layout.shard;
    return order;
  }

  // Runs all ranks, and expects that each exits with `expected`. `disk` is the disk of rank 0.
  static std::unique_ptr<Ranks> Run(const StartOrder& order, FileSystem& disk = FileSystem::Real(),
                                    TrainerExit expected = kExitDone) {
    auto all = std::make_unique<Ranks>();
    all->logs.resize(order.world_size);
    all->codes.resize(order.world_size);
    for (int r = 0; r < order.world_size; ++r) all->links.push_back(std::make_unique<FakeLink>(&all->store));
    std::vector<std::thread> threads;
    for (int r = 0; r < order.world_size; ++r) {
      threads.emplace_back([&, r] {
        StartOrder own = order;
        own.rank = r;
        all->codes[r] = RunRank(own, {.link = *all->links[r],
                                      .file_system = r == 0 ? disk : FileSystem::Real(),
                                      .log = all->logs[r],
                                      .must_leave = [] { return false; }});
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int r = 0; r < order.world_size; ++r) EXPECT_EQ(all->codes[r], expected) << all->logs[r].str();
    return all;
  }

  static void ExpectNear(double a, double b) { EXPECT_NEAR(a, b, 1e-5 * std::abs(b)); }
};

}  // namespace trainyard
