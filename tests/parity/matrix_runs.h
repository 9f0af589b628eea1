// What the test matrices share: runs of cases on a pool of ranks, the results of the oracle (reference.h: plain
// training in one process), comparisons, and the table of bench/results/matrix.md.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/parity/rank_pool.h"
#include "tests/parity/training.h"

namespace trainyard {

inline RankPool& MatrixPool() {
  static RankPool pool(8);
  return pool;
}

// The outcome of each rank; none, and a failure of the test, if a rank failed.
inline std::vector<TrainingOutcome> TrainOn(const MeshShape& mesh, const TrainingCase& training,
                                            PoolTransport transport = PoolTransport::kSharedMemory,
                                            absl::Duration limit = absl::Minutes(2)) {
  absl::StatusOr<std::vector<std::string>> results = MatrixPool().Run(
      {.mesh = mesh, .transport = transport, .main = "train", .arguments = training.ToString(), .limit = limit});
  EXPECT_TRUE(results.ok()) << results.status();
  std::vector<TrainingOutcome> outcomes;
  if (results.ok()) {
    for (const std::string& result : *results) outcomes.push_back(TrainingOutcome::Parse(result));
  }
  return outcomes;
}

// The oracle's result for a case, computed once for all layouts and strategies.
inline const TrainingOutcome& Oracle(const TrainingCase& training) {
  static std::map<std::string, TrainingOutcome> outcomes;
  const TrainingCase plain{.type = training.type,
                           .steps = training.steps,
                           .global = training.global,
                           .micro = 1,  // the oracle has no micro-batches
                           .clip_norm = training.clip_norm,
                           .family = training.family,
                           .dropout = training.dropout,
                           .lora = training.lora,
                           .documents = training.documents,
                           .masked = training.masked,
                           .lab_tiny = training.lab_tiny,
                           .blocks = training.blocks};
  auto [it, is_new] = outcomes.try_emplace(plain.ToString());
  if (is_new) it->second = TrainReference(plain);
  return it->second;
}

inline double LargestDifference(const std::vector<double>& found, const std::vector<double>& expected) {
  if (found.size() != expected.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double difference = std::abs(found[i] - expected[i]) / std::abs(expected[i]);
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

inline void ExpectSameBits(const std::vector<TrainingOutcome>& a, const std::vector<TrainingOutcome>& b) {
  ASSERT_FALSE(a.empty());
  ASSERT_FALSE(b.empty());
  EXPECT_EQ(a[0].losses, b[0].losses);
  EXPECT_EQ(a[0].parameters_hash, b[0].parameters_hash);
}

// The hashes of all boxes of the model. Fails the test if ranks that hold the same box have different values.
inline std::map<std::string, std::string> BoxesOf(const std::vector<TrainingOutcome>& ranks) {
  std::map<std::string, std::string> boxes;
  for (const TrainingOutcome& rank : ranks) {
    for (const auto& [box, hash] : rank.boxes) {
      const auto [it, is_new] = boxes.emplace(box, hash);
      EXPECT_EQ(it->second, hash) << "the copies of box " << box << " differ";
    }
  }
  return boxes;
}

// Like ExpectSameBits, for models that are divided in different ways, but among equally many tensor ranks.
inline void ExpectSameBitsOfBoxes(const std::vector<TrainingOutcome>& a, const std::vector<TrainingOutcome>& b) {
  ASSERT_FALSE(a.empty());
  ASSERT_FALSE(b.empty());
  EXPECT_EQ(a[0].losses, b[0].losses);
  EXPECT_EQ(BoxesOf(a), BoxesOf(b));
}

// Adds a line for a cell, for bench/results/matrix.md.
inline void AddToTable(const std::string& cell, double losses, double norms, double parameters) {
  const char* path = std::getenv("TRAINYARD_PARITY_TABLE");
  if (path == nullptr) return;
  char line[256];
  std::snprintf(line, sizeof line, "| %s | %.1e | %.1e | %.1e |\n", cell.c_str(), losses, norms, parameters);
  std::ofstream(path, std::ios::app) << line;
}

// "cell 120 of 3024, 310 min left": a run of all combinations takes long. Counts the cells of the current test suite.
inline void PrintProgress() {
  static std::map<const testing::TestSuite*, std::pair<absl::Time, int>> suites;
  const testing::TestSuite* suite = testing::UnitTest::GetInstance()->current_test_suite();
  auto& [begin, done] = suites.try_emplace(suite, absl::Now(), 0).first->second;
  const int cells = suite->test_to_run_count();
  ++done;
  const absl::Duration left = (absl::Now() - begin) / done * (cells - done);
  std::printf("cell %d of %d, %.0f min left\n", done, cells, absl::ToDoubleMinutes(left));
  std::fflush(stdout);
}

}  // namespace trainyard
