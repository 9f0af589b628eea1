// What the coordinator says of ready checkpoints, and what it knows by what it has said. Pure.
//
// A word (v1::CheckpointGrant) is recorded before it goes out, and is the same whenever it is asked for again. What was
// granted counts from then on, whether or not it was heard to have got its name: the start order of each later
// generation names it, until one has told where it went on from.
#pragma once

#include <cstdint>
#include <optional>

#include "google/protobuf/repeated_ptr_field.h"
#include "trainyard/v1/agent.pb.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {

using CheckpointGrants = google::protobuf::RepeatedPtrField<v1::CheckpointGrant>;

// Words that a job keeps, newest last. A trainer has one or two saves without a name at a time.
inline constexpr int kWordsKept = 16;
inline constexpr size_t kManifestHashBytes = 256;

// The word on a checkpoint that rank 0 of the job's current generation has ready. Granted is what comes forward in its
// generation; the same again gets the same word; other contents of a step that was granted or recorded are refused.
v1::CheckpointGrant DecideGrant(const v1::Job& head, const CheckpointGrants& words, const v1::CheckpointReady& ready);

// Adds a word; where there are too many the oldest refusal goes, or, without one, the oldest grant.
void AddGrant(v1::CheckpointGrant word, CheckpointGrants& words);

// The word on this save; null: there is none.
const v1::CheckpointGrant* FindGrant(const CheckpointGrants& words, uint64_t generation, uint64_t step,
                                     const std::string& manifest_hash);

// A save of this generation has its name, or is gone: words on it, and refusals up to its step, have been heard.
void ForgetGrants(uint64_t generation, uint64_t step, CheckpointGrants& words);

// The newest that was granted; null: none.
const v1::CheckpointGrant* NewestGranted(const CheckpointGrants& words);

// The newest step that a group would go on from, as far as is known: of what is recorded, or granted.
std::optional<uint64_t> NewestKeptStep(const v1::Job& head, const CheckpointGrants& words);

// Whether what the job's last step made is held by a checkpoint that is recorded, or that the newest group went on
// from. Always so for a probe, which saves nothing.
bool LastStepIsSaved(const v1::Job& head, uint64_t restored_step);

}  // namespace trainyard
