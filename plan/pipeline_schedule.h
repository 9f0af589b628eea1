// The schedule of a pipeline as data: for each stage, the list of the forwards and backwards that its ranks execute in
// one step. The trainer executes the list of its stage, CheckSchedule (schedule_check.h) proves that the lists finish,
// Simulate (schedule_simulation.h) says how long they take, and `trainctl schedule` draws them. README.md introduces
// the notation.
//
// A pipeline of p stages and v chunks per rank cuts the model into p x v model chunks: chunk c of stage s is model
// chunk c x p + s. Every schedule processes each micro-batch once in each model chunk, forward in ascending order of
// model chunks and backward in descending order.
//
// Pure and deterministic: all ranks compute equal lists from equal arguments. Plain values; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace trainyard {

enum class ScheduleKind {
  kGpipe,                  // all forwards, then all backwards in reverse order (arXiv:1811.06965)
  kOneForwardOneBackward,  // "1f1b": a backward as soon as possible (PipeDream-Flush, arXiv:2006.09503)
  kInterleaved,            // 1f1b over several chunks per rank (Megatron-LM, arXiv:2104.04473)
  kZeroBubble,             // weight gradients fill the bubble (arXiv:2401.10241)
  kSimulated,              // the shortest of several simulated schedules under a memory cap (Varuna, arXiv:2111.04007)
};

// "gpipe", "1f1b", "interleaved", "zero_bubble", "simulated".
absl::string_view ScheduleName(ScheduleKind kind);
// In the order of the enum.
absl::Span<const ScheduleKind> AllScheduleKinds();
// Possible errors: InvalidArgument, which lists all names and suggests the nearest one.
absl::StatusOr<ScheduleKind> ScheduleKindOf(absl::string_view name);

struct PipelineAction {
  enum Kind {
    kForward,         // F
    kBackward,        // B: the gradients of the inputs and of the weights
    kBackwardInput,   // I: the gradients of the inputs, which the previous model chunk waits for
    kBackwardWeight,  // W: the gradients of the weights, which only the optimizer waits for
  };
  Kind kind = kForward;
  int chunk = 0;  // on this rank: 0 to chunks_per_rank - 1
  int micro_batch = 0;

  bool operator==(const PipelineAction&) const = default;
};

// "F0.3": chunk 0, micro-batch 3; "F3" if a rank has one chunk.
std::string ActionText(const PipelineAction& action, int chunks_per_rank);

struct PipelineShape {
  int stages = 1;
  int chunks_per_rank = 1;
  int micro_batches = 1;  // of one step, on each data rank

  int model_chunks() const { return stages * chunks_per_rank; }
  int ModelChunk(int stage, int chunk) const { return chunk * stages + stage; }
  bool operator==(const PipelineShape&) const = default;
};

// Limits of a shape. The product limits the memory of the lists: about 2 million actions, or 3 million with I and W.
inline constexpr int kMaxPipelineStages = 1024;
inline constexpr int kMaxChunksPerRank = 64;
inline constexpr int64_t kMaxScheduledForwards = 1 << 20;  // stages x chunks_per_rank x micro_batches

// A link between two ranks holds this many packets per direction that are sent and not yet received: one that is being
// read and one that is being written.
inline constexpr int kSlotsPerLink = 2;

struct PipelineSchedule {
  PipelineShape shape;
  std::vector<std::vector<PipelineAction>> ranks;  // ranks[stage], in the order of execution
};

// Durations, all in the same unit. Each list has one entry for all model chunks, or one entry for each model chunk.
struct PipelineCosts {
  std::vector<double> forward = {1};
  std::vector<double> backward = {2};
  std::vector<double> backward_input = {1};
  std::vector<double> backward_weight = {1};
  double link = 0;  // from the end of a send until its packet can be received
  int slots_per_link = kSlotsPerLink;
};

// Possible errors: InvalidArgument, which lists every problem: a list with a wrong number of entries, a duration that
// is negative or not finite, a forward with the duration 0, no slots.
absl::Status CheckCosts(const PipelineCosts& costs, const PipelineShape& shape);

// The duration of `kind` in `model_chunk`. REQUIRES: CheckCosts is OK.
double CostOf(const PipelineCosts& costs, PipelineAction::Kind kind, int model_chunk);

// Options of kZeroBubble and kSimulated, which are found by simulation; the other kinds ignore them.
struct SimulatedOptions {
  PipelineCosts costs;
  // The most micro-batches that a rank has in flight: their forward has begun and their last backward (B or W) has not
  // ended, so that the rank holds their activations. 0: as many as 1f1b, which is the number of stages.
  int in_flight = 0;
};

// One stage with one chunk has the list F0 B0 F1 B1 ... for every kind, so that a loop over the list needs no special
// case. The result passes CheckSchedule with `options.costs.slots_per_link` slots for kZeroBubble and kSimulated, and
// with kSlotsPerLink for the other kinds. kInterleaved accepts every multiple of `stages` as number of
// micro-batches, and the other numbers that torch.distributed.pipelining accepts if the links have enough slots for
// them.
// Possible errors: InvalidArgument, which lists every problem: a size that is not positive or exceeds its limit, one
// chunk per rank for kInterleaved or several for another kind, a number of micro-batches that kInterleaved cannot
// divide into rounds (the message names the nearest numbers that it can divide), costs that CheckCosts refuses.
absl::StatusOr<PipelineSchedule> MakeSchedule(ScheduleKind kind, const PipelineShape& shape,
                                              const SimulatedOptions& options = {});

// One line per rank: "rank 0: F0 F1 B0 B1". At most `max_ranks` lines of `max_actions` actions (0: no limit); of the
// rest, only the number is given.
std::string ScheduleLists(const PipelineSchedule& schedule, int max_ranks = 0, int max_actions = 0);

}  // namespace trainyard
