// The test matrix of strategies: all valid combinations, and a small subset in which every pair of values occurs. Pure.
#pragma once

#include <string>
#include <vector>

#include "tests/parity/training.h"
#include "worker/mesh/mesh.h"

namespace trainyard {

// How the micro-batches of a step are distributed over the ranks: one or three for each rank, or a number that the
// world size does not divide.
enum class CellDeal { kOne, kThree, kUneven };

struct Cell {
  const char* name = "";  // of the strategy
  Strategy strategy = Strategy::kDdp;
  bool reshard_after_forward = true;
  ModelFamily family = ModelFamily::kGpt2;
  CellDeal deal = CellDeal::kOne;
  bool overlap = true;
  bool dropout = false;  // of GPT-2, and of adapters
  bool lora = false;
  bool documents = false;  // packed, without attention across them
  bool masked = false;     // some targets have no loss
  RecomputeMode recompute = RecomputeMode::kNone;
  int world = 1;

  std::string ToString() const;  // "fsdp_gpt2_world3_uneven_overlap_dropout_lora_documents_masked_blocks"
  MeshShape mesh() const;
  TrainingCase training() const;
};

// Every valid combination, each with one of the four combinations of `documents` and `masked`. In a valid combination
// hsdp has a mesh of 2 x 2, and an uneven deal has at least 3 ranks.
std::vector<Cell> AllCells();

// One cell per strategy: a GPT-2 on the strategy's largest number of ranks, with several micro-batches per rank.
std::vector<Cell> OneCellPerStrategy();

// The cells of OneCellPerStrategy for tests that take seconds per strategy: those of all strategies if RunsAllCells(),
// else those of ddp, zero2 and hsdp, which together replicate and shard each kind of state, on one axis and on two.
std::vector<Cell> SelectedStrategies();

// Whether to run all combinations instead of a subset: set by TRAINYARD_ALL_CELLS.
bool RunsAllCells();

// Returns a subset of `cells`, chosen greedily, that contains every pair of values of two properties that `cells`
// contains. Deterministic.
std::vector<Cell> PairwiseCover(const std::vector<Cell>& cells);

// The number of pairs of values that occur in `cells` but not in `cover`.
size_t MissingPairs(const std::vector<Cell>& cells, const std::vector<Cell>& cover);

}  // namespace trainyard
