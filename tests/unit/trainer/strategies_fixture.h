// Whole runs of several ranks, as threads, without a daemon.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
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
    auto all = RunEach(
        order.world_size, [&order](int) { return order; }, disk);
    ExpectCodes(*all, expected);
    return all;
  }

  // Runs ranks 0 to `count` - 1, each with the order that `order_of` returns for it. `disk` is the disk of rank 0.
  static std::unique_ptr<Ranks> RunEach(int count, const std::function<StartOrder(int rank)>& order_of,
                                        FileSystem& disk = FileSystem::Real()) {
    auto all = std::make_unique<Ranks>();
    all->logs.resize(static_cast<size_t>(count));
    all->codes.resize(static_cast<size_t>(count));
    for (int r = 0; r < count; ++r) all->links.push_back(std::make_unique<FakeLink>(&all->store));
    std::vector<std::thread> threads;
    for (int r = 0; r < count; ++r) {
      threads.emplace_back([&, r] {
        const auto i = static_cast<size_t>(r);
        StartOrder own = order_of(r);
        own.rank = r;
        all->codes[i] = RunRank(own, {.link = *all->links[i],
                                      .file_system = r == 0 ? disk : FileSystem::Real(),
                                      .log = all->logs[i],
                                      .must_leave = [] { return false; }});
      });
    }
    for (std::thread& thread : threads) thread.join();
    return all;
  }

  static void ExpectCodes(const Ranks& ranks, TrainerExit expected) {
    for (size_t r = 0; r < ranks.codes.size(); ++r) EXPECT_EQ(ranks.codes[r], expected) << ranks.logs[r].str();
  }

  static void ExpectNear(double a, double b) { EXPECT_NEAR(a, b, 1e-5 * std::abs(b)); }
};

}  // namespace trainyard
