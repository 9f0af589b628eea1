// The ledger of where the time of a job's ranks went. Pure. All sums are integers of rank-milliseconds, and whole spans
// move between parts, so the parts add up to the ranks times the time accounted, always.
//
// Time is the coordinator's steady time anchored at the wall clock of its start: a step of the wall clock moves
// nothing. What passed while no coordinator ran goes to the part the job was recorded in.
#pragma once

#include <cstdint>

#include "trainyard/v1/service.pb.h"
#include "trainyard/v1/store.pb.h"

namespace trainyard {

enum class GoodputPart { kQueue, kStart, kTrain, kSave, kLost, kDetect, kRecover, kPause };
inline constexpr GoodputPart kGoodputParts[] = {GoodputPart::kQueue,   GoodputPart::kStart, GoodputPart::kTrain,
                                                GoodputPart::kSave,    GoodputPart::kLost,  GoodputPart::kDetect,
                                                GoodputPart::kRecover, GoodputPart::kPause};
// "queue": a label of metrics.
const char* GoodputPartName(GoodputPart part);

struct GoodputFacts {
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  uint64_t generation = 0;
  bool makes_steps = false;  // the group has formed and is not being killed
  bool saves = false;        // rank 0 is in phase save
};
// What the ranks spend their time with now.
GoodputPart PartOf(const GoodputFacts& facts);

// The ledger of a job that begins now.
v1::GoodputRecord BeginGoodput(int64_t now_ms);
// Everything up to `now_ms` is accounted, the newest span as `part`. A clock that is behind the ledger (the machine's
// was set back while no coordinator ran) adds nothing and takes nothing away.
void Account(GoodputPart part, int64_t now_ms, uint64_t ranks, v1::GoodputRecord& ledger);
// REQUIRES of the three below: everything up to now is accounted.
// Rank 0 told a completed step.
void StepCompleted(v1::GoodputRecord& ledger);
// A checkpoint of the newest completed step was recorded; or one that does not hold the newest `after_ms` of train_ms.
void StepsSaved(v1::GoodputRecord& ledger, uint64_t after_ms = 0);
// The generation is over without a save of its last steps: they are lost, and what followed the last of them was spent
// until somebody knew.
void StepsLost(v1::GoodputRecord& ledger);

uint64_t PartMs(const v1::GoodputRecord& ledger, GoodputPart part);
uint64_t TotalMs(const v1::GoodputRecord& ledger);
v1::Goodput MakeGoodput(const v1::GoodputRecord& ledger);

}  // namespace trainyard
