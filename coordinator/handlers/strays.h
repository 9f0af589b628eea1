// Trainers of past generations that a host may still run. They use slots until their exit is reported.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

bool SameTrainer(const v1::TrainerKey& a, const v1::TrainerKey& b);

// Adds a rank of the job's current generation to the strays of the host. The returned reference is valid until their
// next change.
v1::TrainerKey& AddStray(Host& host, const Job& job, uint32_t rank);

// Applies a fact about a trainer that may be a stray. Every fact proves that the trainer was started; an exit frees its
// slot.
void ForgetStray(Turn& turn, Host& host, const v1::Fact& fact);

// Frees the slots of strays that were never started: the host has applied a revision without them, and has not reported
// that they run.
void ForgetUnstartedStrays(Turn& turn, Host& host);

}  // namespace trainyard
