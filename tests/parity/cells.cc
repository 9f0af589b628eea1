#include "tests/parity/cells.h"

#include <stdlib.h>

#include <array>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/parity/cover.h"

namespace trainyard {
namespace {

struct NamedStrategy {
  const char* name;  // "fsdp_kept": parameters stay gathered between forward and backward
  Strategy strategy;
  bool reshard_after_forward;
};
constexpr NamedStrategy kStrategies[] = {
    {"ddp", Strategy::kDdp, true},     {"zero1", Strategy::kZero1, true}, {"zero2", Strategy::kZero2, true},
    {"zero3", Strategy::kZero3, true}, {"fsdp", Strategy::kFsdp, true},   {"fsdp_kept", Strategy::kFsdp, false},
    {"hsdp", Strategy::kHsdp, true},
};

// Two properties of a cell with their values: property, value, property, value. A property is an index into the result
// of ValuesOf; the first has the smaller index.
using Pair = std::array<int, 4>;

CellValues ValuesOf(const Cell& cell) {
  int strategy = 0;
  for (const NamedStrategy& each : kStrategies) {
    if (std::string(each.name) == cell.name) break;
    ++strategy;
  }
  return {strategy,   static_cast<int>(cell.deal),   cell.overlap, cell.dropout,   static_cast<int>(cell.recompute),
          cell.world, static_cast<int>(cell.family), cell.lora,    cell.documents, cell.masked};
}

std::set<Pair> PairsOf(const Cell& cell) {
  const CellValues values = ValuesOf(cell);
  const int properties = static_cast<int>(values.size());
  std::set<Pair> pairs;
  for (int i = 0; i < properties; ++i) {
    for (int j = i + 1; j < properties; ++j) pairs.insert({i, values[i], j, values[j]});
  }
  return pairs;
}

std::set<Pair> PairsOf(const std::vector<Cell>& cells) {
  std::set<Pair> pairs;
  for (const Cell& cell : cells) pairs.merge(PairsOf(cell));
  return pairs;
}

}  // namespace

std::string Cell::ToString() const {
  const char* recomputes[] = {"", "_blocks", "_selective"};
  const char* deals[] = {"one", "three", "uneven"};
  return absl::StrCat(name, "_", FamilyName(family), "_world", world, "_", deals[static_cast<int>(deal)],
                      overlap ? "_overlap" : "", dropout ? "_dropout" : "", lora ? "_lora" : "",
                      documents ? "_documents" : "", masked ? "_masked" : "", recomputes[static_cast<int>(recompute)]);
}

MeshShape Cell::mesh() const {
  if (strategy == Strategy::kHsdp) return {.dp_replicate = 2, .dp_shard = 2};
  if (strategy == Strategy::kDdp) return {.dp_replicate = world};
  return {.dp_shard = world};
}

TrainingCase Cell::training() const {
  TrainingCase training;
  training.strategy = strategy;
  training.reshard_after_forward = reshard_after_forward;
  training.family = family;
  training.overlap = overlap;
  training.dropout = dropout ? 0.1 : 0;
  training.lora = lora;
  training.documents = documents;
  training.masked = masked;
  training.recompute = recompute;
  training.clip_norm = 0.5;
  switch (deal) {
    case CellDeal::kOne:
      training.global = 12;
      training.micro = 12 / world;
      break;
    case CellDeal::kThree:
      training.global = 36;
      training.micro = 36 / world / 3;
      break;
    case CellDeal::kUneven:  // 8 micro-batches for 3 ranks; 6 for 4
      training.global = 24;
      training.micro = world == 3 ? 3 : 4;
      break;
  }
  return training;
}

std::vector<Cell> AllCells() {
  std::vector<Cell> cells;
  const auto add = [&cells](const NamedStrategy& each, int world, CellDeal deal, ModelFamily family, bool dropout,
                            bool lora) {
    for (bool overlap : {true, false}) {
      for (RecomputeMode recompute : {RecomputeMode::kNone, RecomputeMode::kBlocks, RecomputeMode::kSelective}) {
        const uint64_t bits = MixedBits(cells.size());
        cells.push_back({.name = each.name,
                         .strategy = each.strategy,
                         .reshard_after_forward = each.reshard_after_forward,
                         .family = family,
                         .deal = deal,
                         .overlap = overlap,
                         .dropout = dropout,
                         .lora = lora,
                         .documents = bits % 2 == 1,
                         .masked = bits / 2 % 2 == 1,
                         .recompute = recompute,
                         .world = world});
      }
    }
  };
  for (const NamedStrategy& each : kStrategies) {
    for (int world = 1; world <= 4; ++world) {
      if (each.strategy == Strategy::kHsdp && world != 4) continue;
      for (CellDeal deal : {CellDeal::kOne, CellDeal::kThree, CellDeal::kUneven}) {
        if (deal == CellDeal::kUneven && world < 3) continue;
        for (bool lora : {false, true}) {
          add(each, world, deal, ModelFamily::kGpt2, /*dropout=*/false, lora);
          add(each, world, deal, ModelFamily::kGpt2, /*dropout=*/true, lora);
          add(each, world, deal, ModelFamily::kLlama, /*dropout=*/lora, lora);
          add(each, world, deal, ModelFamily::kQwen2, /*dropout=*/false, lora);
        }
      }
    }
  }
  return cells;
}

std::vector<Cell> OneCellPerStrategy() {
  std::vector<Cell> cells;
  for (Cell cell : AllCells()) {
    cell.documents = cell.masked = false;
    if (cell.family != ModelFamily::kGpt2 || cell.world != 4 || cell.deal != CellDeal::kThree || !cell.overlap ||
        cell.dropout || cell.lora)
      continue;
    if (cell.recompute == RecomputeMode::kNone) cells.push_back(cell);
  }
  return cells;
}

std::vector<Cell> SelectedStrategies() {
  std::vector<Cell> cells = OneCellPerStrategy();
  if (RunsAllCells()) return cells;
  std::erase_if(cells, [](const Cell& cell) {
    return cell.strategy != Strategy::kDdp && cell.strategy != Strategy::kZero2 && cell.strategy != Strategy::kHsdp;
  });
  return cells;
}

bool RunsAllCells() { return std::getenv("TRAINYARD_ALL_CELLS") != nullptr; }

std::vector<Cell> PairwiseCover(const std::vector<Cell>& cells) {
  std::vector<CellValues> values;
  for (const Cell& cell : cells) values.push_back(ValuesOf(cell));
  std::vector<Cell> cover;
  for (size_t index : GreedyCover(values, /*pairs=*/true)) cover.push_back(cells[index]);
  return cover;
}

size_t MissingPairs(const std::vector<Cell>& cells, const std::vector<Cell>& cover) {
  std::set<Pair> missing = PairsOf(cells);
  for (const Pair& pair : PairsOf(cover)) missing.erase(pair);
  return missing.size();
}

}  // namespace trainyard
