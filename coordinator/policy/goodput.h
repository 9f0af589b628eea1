// Accounts for the time of a job's ranks. Pure. All sums are integers of rank-milliseconds, and only whole spans move
// between parts, so the parts always add up to the number of ranks times the accounted time.
//
// Times come from a steady clock that is set to the wall-clock time when the coordinator starts, so later changes of
// the wall clock have no effect; the next coordinator corrects the ledger by them (FollowWallClock). Time without a
// running coordinator counts as the part in which the job was last recorded.
#pragma once

#include <cstdint>

#include "trainyard/v1/service.pb.h"
#include "trainyard/v1/store.pb.h"

namespace trainyard {

// The message Goodput in service.proto describes the parts.
enum class GoodputPart { kQueue, kStart, kTrain, kSave, kLost, kDetect, kRecover, kPause };
inline constexpr GoodputPart kGoodputParts[] = {GoodputPart::kQueue,   GoodputPart::kStart, GoodputPart::kTrain,
                                                GoodputPart::kSave,    GoodputPart::kLost,  GoodputPart::kDetect,
                                                GoodputPart::kRecover, GoodputPart::kPause};
// Returns the name of the part in metrics, such as "queue".
const char* GoodputPartName(GoodputPart part);

struct GoodputFacts {
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  uint64_t generation = 0;
  bool makes_steps = false;  // the group has formed, and its trainers are still desired
  bool saves = false;        // rank 0 is in the phase save or leaving
};
// Returns the part that the ranks' current time counts as.
GoodputPart CurrentPart(const GoodputFacts& facts);

// Returns the ledger of a job that is submitted at `now_ms`.
v1::GoodputRecord BeginGoodput(int64_t now_ms);
// Accounts for all time up to `now_ms`, and counts the time since the last call as `part`. If the clock is behind the
// ledger (it was set back while no coordinator ran), no time is added, and the ledger's start moves back by the
// difference.
void Account(GoodputPart part, int64_t now_ms, uint64_t ranks, v1::GoodputRecord& ledger);
// Moves the ledger by wall_ahead_ms. Called when the next coordinator has read the ledger, because its steady clock
// begins with the present wall-clock time.
void FollowWallClock(v1::GoodputRecord& ledger);
// Counts the time up to a step that was completed after the ledger was recorded. Called, before FollowWallClock, when
// the next coordinator has read the ledger of a running job. `step_ms`: when the step was completed, by the steady
// clock of the earlier coordinator; 0: not known.
void CountRecordedStep(int64_t step_ms, uint64_t ranks, v1::GoodputRecord& ledger);
// REQUIRES for the next three functions: all time up to now is accounted for.
// Called when rank 0 has reported a completed step. `since_ms`: the time of all ranks since the step was completed. The
// report may be late, for example because no coordinator ran.
void StepCompleted(v1::GoodputRecord& ledger, uint64_t since_ms = 0);
// Called when a checkpoint was recorded. `after_ms`: the training time since the step of the checkpoint; 0: the
// checkpoint is of the newest completed step.
void StepsSaved(v1::GoodputRecord& ledger, uint64_t after_ms = 0);
// Called when all ranks of the generation have ended without a save of its last steps: they count as lost, and the time
// since the last of them counts as detection.
void StepsLost(v1::GoodputRecord& ledger);

uint64_t PartMs(const v1::GoodputRecord& ledger, GoodputPart part);
uint64_t TotalMs(const v1::GoodputRecord& ledger);
v1::Goodput MakeGoodput(const v1::GoodputRecord& ledger);

}  // namespace trainyard
