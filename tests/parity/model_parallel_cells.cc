#include "tests/parity/model_parallel_cells.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/parity/cover.h"

namespace trainyard {
namespace {

constexpr Strategy kDataStrategies[] = {Strategy::kDdp,   Strategy::kZero1, Strategy::kZero2,
                                        Strategy::kZero3, Strategy::kFsdp,  Strategy::kHsdp};
constexpr RecomputeMode kRecomputeModes[] = {RecomputeMode::kNone, RecomputeMode::kBlocks, RecomputeMode::kSelective};
constexpr CellMicroBatches kMicroBatchDeals[] = {CellMicroBatches::kOne, CellMicroBatches::kUneven,
                                                 CellMicroBatches::kEight};

int ChunksOf(ScheduleKind schedule) { return schedule == ScheduleKind::kInterleaved ? 2 : 1; }

CellValues ValuesOf(const ModelParallelCell& cell) {
  return {cell.stages,
          cell.data,
          cell.tensor,
          static_cast<int>(cell.schedule),
          static_cast<int>(cell.strategy),
          static_cast<int>(cell.micro_batches),
          static_cast<int>(cell.family),
          cell.dropout,
          static_cast<int>(cell.recompute),
          static_cast<int>(cell.type),
          cell.sequence,
          cell.lora,
          cell.documents,
          cell.masked};
}

std::vector<ModelParallelCell> CoverOf(const std::vector<ModelParallelCell>& cells, bool pairs) {
  std::vector<CellValues> values;
  for (const ModelParallelCell& cell : cells) values.push_back(ValuesOf(cell));
  std::vector<ModelParallelCell> cover;
  for (size_t index : GreedyCover(values, pairs)) cover.push_back(cells[index]);
  return cover;
}

// Whether a strategy can run on this number of data ranks, and differs from ddp there.
bool IsValid(Strategy strategy, int data) {
  if (strategy == Strategy::kHsdp) return data == 4;
  return data > 1 || strategy == Strategy::kDdp;
}

// Adds the cell for each value of `sequence` and `lora` that is valid, each with one of the four combinations of
// `documents` and `masked`.
void AddEnds(ModelParallelCell cell, std::vector<ModelParallelCell>& cells) {
  for (bool is_on : {false, true}) {
    cell.sequence = is_on && cell.tensor > 1;
    cell.lora = is_on && cell.tensor == 1;
    if (cell.dropout && cell.family != ModelFamily::kGpt2 && !cell.lora) continue;
    const uint64_t bits = MixedBits(cells.size());
    cell.documents = bits % 2 == 1;
    cell.masked = bits / 2 % 2 == 1;
    cells.push_back(cell);
  }
}

// Adds the cells for all values of the properties that do not belong to the layout.
void AddVariations(ModelParallelCell cell, std::vector<ModelParallelCell>& cells) {
  for (ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama, ModelFamily::kQwen2}) {
    for (CellMicroBatches micro_batches : kMicroBatchDeals) {
      for (RecomputeMode recompute : kRecomputeModes) {
        for (at::ScalarType type : {at::kDouble, at::kFloat}) {
          for (bool dropout : {false, true}) {
            cell.family = family;
            cell.micro_batches = micro_batches;
            cell.recompute = recompute;
            cell.type = type;
            cell.dropout = dropout;
            AddEnds(cell, cells);
          }
        }
      }
    }
  }
}

}  // namespace

std::string ModelParallelCell::ToString() const {
  const char* recomputes[] = {"", "_blocks", "_selective"};
  const char* deals[] = {"one", "uneven", "eight"};
  const absl::string_view schedule_name = ScheduleName(schedule);
  return absl::StrCat("pp", stages, "_data", data, "_tp", tensor, "_", schedule_name, "_", StrategyName(strategy), "_",
                      FamilyName(family), "_", deals[static_cast<int>(micro_batches)], dropout ? "_dropout" : "",
                      recomputes[static_cast<int>(recompute)], type == at::kFloat ? "_fp32" : "",
                      sequence ? "_sequence" : "", lora ? "_lora" : "", documents ? "_documents" : "",
                      masked ? "_masked" : "");
}

MeshShape ModelParallelCell::mesh() const {
  MeshShape shape{.pp = stages, .tp = tensor};
  (strategy == Strategy::kDdp ? shape.dp_replicate : shape.dp_shard) = data;
  if (strategy == Strategy::kHsdp) shape.dp_replicate = shape.dp_shard = 2;
  return shape;
}

TrainingCase ModelParallelCell::training() const {
  TrainingCase training{.type = type,
                        .clip_norm = 0.5,
                        .family = family,
                        .dropout = dropout ? 0.1 : 0,
                        .lora = lora,
                        .documents = documents,
                        .masked = masked,
                        .strategy = strategy,
                        .recompute = recompute,
                        .schedule = schedule,
                        .chunks = ChunksOf(schedule),
                        .sequence = sequence};
  // Stages of different length, unless a chunk of a stage is one block.
  training.blocks = std::max<int64_t>(5, stages * training.chunks);
  switch (micro_batches) {
    case CellMicroBatches::kOne:
      training.micro = 4;
      training.global = 4 * data;
      break;
    case CellMicroBatches::kUneven:
      training.micro = 2;
      training.global = 2 * (data == 1 ? 3 : 2 * data + 1);
      break;
    case CellMicroBatches::kEight:
      training.micro = 1;
      training.global = 8 * data;
      break;
  }
  return training;
}

std::vector<ModelParallelCell> AllModelParallelCells() {
  std::vector<ModelParallelCell> cells;
  for (int stages : {1, 2, 4}) {
    for (int tensor : {1, 2, 4}) {
      for (int data : {1, 2, 4}) {
        if (stages * tensor == 1 || stages * tensor * data > 8) continue;
        for (ScheduleKind schedule : AllScheduleKinds()) {
          if (stages == 1 && schedule != ScheduleKind::kOneForwardOneBackward) continue;
          for (Strategy strategy : kDataStrategies) {
            if (!IsValid(strategy, data)) continue;
            AddVariations(
                {.stages = stages, .data = data, .tensor = tensor, .schedule = schedule, .strategy = strategy}, cells);
          }
        }
      }
    }
  }
  // Of several cells that add equally many combinations, a cover takes the first. Cells with both stages and tensor
  // ranks find more errors, so they come first.
  std::stable_partition(cells.begin(), cells.end(),
                        [](const ModelParallelCell& cell) { return cell.stages > 1 && cell.tensor > 1; });
  return cells;
}

std::vector<ModelParallelCell> PairwiseCover(const std::vector<ModelParallelCell>& cells) {
  return CoverOf(cells, /*pairs=*/true);
}
std::vector<ModelParallelCell> ValueCover(const std::vector<ModelParallelCell>& cells) {
  return CoverOf(cells, /*pairs=*/false);
}

}  // namespace trainyard
