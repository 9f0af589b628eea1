// A small job that trains on a text that the fixture writes, for tests that run whole ranks without a daemon.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/hash.h"
#include "tests/unit/link/fake_link.h"
#include "tests/unit/temporary_folder.h"
#include "worker/diagnostics/ledger.h"
#include "worker/trainer/run.h"

namespace trainyard {

class SmallJobTest : public ::testing::Test {
 protected:
  SmallJobTest() {
    at::set_num_threads(1);
    std::string text;
    for (int i = 0; i < 4000; ++i) absl::StrAppend(&text, i * i % 97, " and ", i % 7, "; ");
    EXPECT_TRUE(WriteFileAtomically(folder_ / "text.txt", text).ok());
  }

  // An order for a single rank, which saves to `run` below the test's folder.
  StartOrder SmallOrder(const std::string& run, uint64_t steps) {
    StartOrder order;
    order.job_id = "abcdefgh";
    order.generation = 1;
    order.host = "w1";
    order.spec_bytes = "spec";
    order.spec_digest = HashHex(order.spec_bytes);
    TrainConfig& config = order.config;
    config.job_name = "small";
    config.steps = steps;
    config.model = {.layers = 2, .heads = 2, .width = 16, .context = 16};
    config.data = {.text = {folder_ / "text.txt"}, .validation = 0.1};
    config.optimizer.lr = 1e-2;
    config.checkpoint_dir = folder_ / run;
    return order;
  }

  TemporaryFolder folder_;
};

// Runs a single rank that has two micro-batches of two samples in each step.
class SmallRunTest : public SmallJobTest {
 protected:
  StartOrder Order(const std::string& run, uint64_t steps) {
    StartOrder order = SmallOrder(run, steps);
    order.config.batch_global = 4;
    order.config.batch_micro = 2;
    return order;
  }
  TrainerExit Run(const StartOrder& order, FakeLink& link, bool leave = false) {
    log_.str("");
    return RunRank(order, {.link = link,
                           .file_system = FileSystem::Real(),
                           .log = log_,
                           .must_leave = [leave] { return leave; },
                           .ledger = &Ledger::ForProcess()});
  }

  std::ostringstream log_;  // of the newest run
};

}  // namespace trainyard
