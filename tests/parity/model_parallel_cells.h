// The test matrix of models that are divided among ranks: pipeline stages, tensor ranks and data ranks with every
// schedule and strategy. Pure.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/parity/training.h"
#include "worker/mesh/mesh.h"

namespace trainyard {

// The micro-batches of a step on each data rank: one, which is fewer than a pipeline has stages; three, or with several
// data ranks three on the first and two on the others; eight, so that a pipeline is full for some time.
enum class CellMicroBatches { kOne, kUneven, kEight };

struct ModelParallelCell {
  int stages = 1, data = 1, tensor = 1;
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  Strategy strategy = Strategy::kDdp;
  CellMicroBatches micro_batches = CellMicroBatches::kOne;
  ModelFamily family = ModelFamily::kGpt2;  // the heads of GPT-2 and Qwen2 are tied, that of Llama is not
  bool dropout = false;                     // of GPT-2, and of adapters
  RecomputeMode recompute = RecomputeMode::kNone;
  at::ScalarType type = at::kDouble;
  bool sequence = false;   // tensor ranks divide it
  bool lora = false;       // without tensor ranks
  bool documents = false;  // packed, without attention across them
  bool masked = false;     // some targets have no loss

  std::string ToString() const;  // "pp2_data2_tp2_interleaved_zero1_llama_uneven_dropout_blocks_fp32_lora_masked"
  int world() const { return stages * data * tensor; }
  MeshShape mesh() const;
  TrainingCase training() const;  // without the number of steps
};

// For messages of the test framework.
inline void PrintTo(const ModelParallelCell& cell, std::ostream* out) { *out << cell.ToString(); }

// Every valid combination on two to eight ranks that has stages or tensor ranks, with one of the four combinations of
// `documents` and `masked`: thousands.
std::vector<ModelParallelCell> AllModelParallelCells();

// Greedy, deterministic subsets of `cells`: the first contains every pair of values of two properties, the second every
// value.
std::vector<ModelParallelCell> PairwiseCover(const std::vector<ModelParallelCell>& cells);
std::vector<ModelParallelCell> ValueCover(const std::vector<ModelParallelCell>& cells);

}  // namespace trainyard
