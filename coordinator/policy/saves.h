// Decides on grants for ready checkpoints, and derives from the grants which checkpoints exist. Pure.
// A v1::CheckpointGrant is the answer to a request: a grant or, if `refused` is set, a refusal. It is recorded before
// it is sent, and a repeated request does not change it. A granted checkpoint counts from then on, even without a
// report that its folder was renamed to its final name: rank 0 of every later generation receives the grant, until
// a generation has reported from which checkpoint it resumed.
#pragma once

#include <cstdint>
#include <optional>

#include "google/protobuf/repeated_ptr_field.h"
#include "trainyard/v1/agent.pb.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {

using CheckpointGrants = google::protobuf::RepeatedPtrField<v1::CheckpointGrant>;

// The largest number of grants and refusals stored per job, newest last. A trainer has one or two saves at a time that
// are not renamed yet.
inline constexpr int kGrantsMax = 16;
// A report with a longer manifest hash is wrong.
inline constexpr size_t kManifestHashBytes = 256;

// Decides on a checkpoint that rank 0 of the job's current generation has reported as ready. `head`: the recorded job.
// The checkpoint is granted if its step is later than those that this generation has saved; other contents of a step
// that was granted or recorded are refused. Returns none if the request is a repeated one: either its answer is among
// `grants`, or rank 0 has acted on it, because this generation has recorded this checkpoint, or has recorded or was
// granted one of a later step. A daemon repeats a request that was answered long ago if its predecessor could not write
// to the file of its outbox.
std::optional<v1::CheckpointGrant> DecideGrant(const v1::Job& head, const CheckpointGrants& grants,
                                               const v1::CheckpointReady& ready);

// Adds a grant or refusal. If there are then too many, removes the oldest refusal, or, without one, the oldest grant.
void AddGrant(v1::CheckpointGrant grant, CheckpointGrants& grants);

// Returns the grant or refusal for this save, or null.
const v1::CheckpointGrant* FindGrant(const CheckpointGrants& grants, uint64_t generation, uint64_t step,
                                     const std::string& manifest_hash);

// Called when a save of this generation has its final name or was deleted: removes its grants and the refusals up to
// its step, because the trainer has received them.
void ForgetGrants(uint64_t generation, uint64_t step, CheckpointGrants& grants);

// Returns the newest grant that is not a refusal, or null.
const v1::CheckpointGrant* NewestGranted(const CheckpointGrants& grants);

// Returns the newest step from which a generation would resume, as far as is known: recorded or granted.
std::optional<uint64_t> NewestResumeStep(const v1::Job& head, const CheckpointGrants& grants);

// Whether the state after the job's last step (last_step.h) is in a checkpoint that is recorded, or from which the
// newest generation resumed. Always true for a probe and for a command.
bool LastStepIsSaved(const v1::Job& head, uint64_t last_step, uint64_t restored_step);

}  // namespace trainyard
