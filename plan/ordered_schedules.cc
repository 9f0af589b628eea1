// The schedules that follow from the shape alone: gpipe, 1f1b and interleaved.
#include <algorithm>

#include "plan/generators.h"

namespace trainyard {
namespace {

using Kind = PipelineAction::Kind;

PipelineSchedule EmptySchedule(const PipelineShape& shape) {
  PipelineSchedule schedule{.shape = shape, .ranks = {}};
  schedule.ranks.resize(shape.stages);
  return schedule;
}

// The chunk and micro-batch of the `index`-th forward of a rank. Forwards are ordered by round, in a round by chunk,
// and in a chunk by micro-batch. Backwards have the same order with the chunks reversed.
PipelineAction InterleavedAction(Kind kind, int index, const PipelineShape& shape, int per_round) {
  const int per_round_all_chunks = per_round * shape.chunks_per_rank;
  const int chunk = index % per_round_all_chunks / per_round;
  return {.kind = kind,
          .chunk = kind == PipelineAction::kForward ? chunk : shape.chunks_per_rank - 1 - chunk,
          .micro_batch = index / per_round_all_chunks * per_round + index % per_round};
}

}  // namespace

PipelineSchedule OneStageSchedule(const PipelineShape& shape) {
  PipelineSchedule schedule = EmptySchedule(shape);
  for (int m = 0; m < shape.micro_batches; ++m) {
    for (int c = 0; c < shape.chunks_per_rank; ++c) schedule.ranks[0].push_back({PipelineAction::kForward, c, m});
    for (int c = shape.chunks_per_rank - 1; c >= 0; --c) {
      schedule.ranks[0].push_back({PipelineAction::kBackward, c, m});
    }
  }
  return schedule;
}

PipelineSchedule GpipeSchedule(const PipelineShape& shape) {
  PipelineSchedule schedule = EmptySchedule(shape);
  for (std::vector<PipelineAction>& list : schedule.ranks) {
    for (int m = 0; m < shape.micro_batches; ++m) list.push_back({PipelineAction::kForward, 0, m});
    for (int m = shape.micro_batches - 1; m >= 0; --m) list.push_back({PipelineAction::kBackward, 0, m});
  }
  return schedule;
}

PipelineSchedule OneForwardOneBackwardSchedule(const PipelineShape& shape) {
  PipelineSchedule schedule = EmptySchedule(shape);
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::vector<PipelineAction>& list = schedule.ranks[stage];
    // A stage runs ahead by the number of stages after it, so that its first gradient arrives when the stage needs it.
    const int warm_up = std::min(shape.stages - 1 - stage, shape.micro_batches);
    for (int m = 0; m < warm_up; ++m) list.push_back({PipelineAction::kForward, 0, m});
    for (int m = 0; m < shape.micro_batches; ++m) {
      if (m + warm_up < shape.micro_batches) list.push_back({PipelineAction::kForward, 0, m + warm_up});
      list.push_back({PipelineAction::kBackward, 0, m});
    }
  }
  return schedule;
}

InterleavedRounds RoundsOf(const PipelineShape& shape) {
  InterleavedRounds result{.rounds = std::max(1, shape.micro_batches / shape.stages)};
  if (shape.micro_batches % result.rounds == 0) result.per_round = shape.micro_batches / result.rounds;
  result.has_room = result.rounds == 1 || result.per_round <= shape.stages + kSlotsPerLink - 1;
  return result;
}

PipelineSchedule InterleavedSchedule(const PipelineShape& shape) {
  PipelineSchedule schedule = EmptySchedule(shape);
  const int per_round = RoundsOf(shape).per_round;
  const int total = shape.chunks_per_rank * shape.micro_batches;
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::vector<PipelineAction>& list = schedule.ranks[stage];
    // The last stage begins its backwards when the first round reaches its last chunk. Each stage before it runs ahead
    // by two more forwards than the next stage: its gradient arrives two actions later, because the stages after it
    // alternate forwards and backwards.
    const int ahead = (shape.chunks_per_rank - 1) * per_round + 2 * (shape.stages - 1 - stage);
    const int warm_up = std::min(ahead, total);
    for (int i = 0; i < warm_up; ++i) {
      list.push_back(InterleavedAction(PipelineAction::kForward, i, shape, per_round));
    }
    for (int i = 0; i < total; ++i) {
      if (i + warm_up < total) {
        list.push_back(InterleavedAction(PipelineAction::kForward, i + warm_up, shape, per_round));
      }
      list.push_back(InterleavedAction(PipelineAction::kBackward, i, shape, per_round));
    }
  }
  return schedule;
}

}  // namespace trainyard
