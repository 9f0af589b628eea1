// Converts between the wire's messages and the trainer's plain values. Pure. Only files of the link, which include
// protobuf, include this header.
#pragma once

#include <map>

#include "absl/status/statusor.h"
#include "trainyard/v1/trainer.pb.h"
#include "worker/link/config.h"
#include "worker/link/link.h"

namespace trainyard {

// Computes the digest of the spec's bytes itself and ignores the sender's. Possible errors: those of ConfigFromSpec.
absl::StatusOr<StartOrder> OrderFromMessage(const v1::StartTrainer& message);

// The message lacks the trainer's key, the number and the time, which the link adds. Sentences are converted to valid
// UTF-8 and cut.
v1::Fact ToMessage(const TrainerFact& fact);
v1::MemoryUse ToMessage(const MemoryUse& use);
v1::StepReport ToMessage(const StepRecord& record);
v1::EvalReport ToMessage(const EvalRecord& record);
v1::CommunicatorReport ToMessage(const CommunicatorProgress& progress);
// `longest`: see PhaseClock::TakeLongest.
void AddPhaseTimes(const std::map<Phase, double>& longest, v1::RankReport& report);
void AddWork(const WorkTotals& work, v1::RankReport& report);

}  // namespace trainyard
