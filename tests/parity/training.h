// One training run of the product's own parts, as a rank makes it, and its outcome in full precision: what the tests of
// parity compare with the oracle and with each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"
#include "worker/model/gpt2.h"
#include "worker/parallel/data_parallel.h"

namespace trainyard {

struct TrainingCase {
  at::ScalarType type = at::kDouble;
  int64_t steps = 1;
  int64_t global = 12;
  int64_t micro = 1;
  double clip_norm = 0;
  double dropout = 0;
  int64_t bucket_elements = 4096;  // several buckets
  bool overlap = true;
  int64_t rejected_step = 0;  // the last rank finds its loss of no use there; 0: nowhere

  std::string ToString() const;  // as the arguments of a rank
  static TrainingCase Parse(const std::string& text);

  Gpt2Config model() const;
  DataParallelOptions options() const;
  double LearningRate(int64_t step) const;
};

struct TrainingOutcome {
  std::vector<double> losses;  // mean over the tokens of each step's global batch
  std::vector<double> norms;   // of the gradient
  std::string parameters_hash;
  double sum_of_parameters = 0;

  std::string ToString() const;
  static TrainingOutcome Parse(const std::string& text);
};

// Token `i` of the endless text that all cases train on.
int64_t TokenAt(int64_t i);
// Samples [first, first + count) of it as (inputs, targets).
std::pair<at::Tensor, at::Tensor> Samples(int64_t first, int64_t count, int64_t context);

// Runs the case on this rank.
absl::StatusOr<TrainingOutcome> Train(Communicator& communicator, const TrainingCase& training);

// Runs the case through the oracle.
TrainingOutcome TrainReference(const TrainingCase& training);

}  // namespace trainyard
