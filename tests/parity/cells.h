// The matrix of strategies: which combinations there are, and few of them in which every pair of values meets. Pure.
#pragma once

#include <string>
#include <vector>

#include "tests/parity/training.h"
#include "worker/mesh/mesh.h"

namespace trainyard {

// How a step's micro-batches fall on the ranks.
enum class CellDeal { kOne, kThree, kUneven };

struct Cell {
  const char* name = "";  // of the strategy
  Strategy strategy = Strategy::kDdp;
  bool reshard_after_forward = true;
  CellDeal deal = CellDeal::kOne;
  bool overlap = true;
  bool dropout = false;
  RecomputeMode recompute = RecomputeMode::kNone;
  int world = 1;

  std::string ToString() const;  // "fsdp_world3_uneven_overlap_dropout_blocks"
  MeshShape mesh() const;
  TrainingCase training() const;
};

// Every combination that can be: hsdp is 2 x 2, an uneven deal needs 3 ranks or more.
std::vector<Cell> AllCells();

// One of each strategy, at the largest world it takes part in, with several micro-batches a rank.
std::vector<Cell> OneCellPerStrategy();

// Whether the whole product is wanted instead of a cover: by TRAINYARD_ALL_CELLS.
bool WantsAll();

// Of `cells`, greedily, so many that each pair of values of two properties which occurs in `cells` occurs among them,
// and at least `least`. The same for the same cells.
std::vector<Cell> PairwiseCover(const std::vector<Cell>& cells, size_t least);

// Pairs of values in `cells` that are in none of `cover`.
size_t MissingPairs(const std::vector<Cell>& cells, const std::vector<Cell>& cover);

}  // namespace trainyard
