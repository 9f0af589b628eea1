// What is wrong with a job beyond the ranges of single fields, and which of its keys have no effect. Lists all problems
// at once, each with the numbers it is about and the choices there are. Pure.
#pragma once

#include <cstdint>

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// REQUIRES: DropRefused left nothing out of range in `spec`. The preset is applied and defaults are not, so that a key
// that was given can be told from one that was not. `positions` may be empty. No loop runs over a number of the spec
// itself, so that it takes a millisecond at most whatever the numbers are.
void ValidateJob(const v1::JobSpec& spec, const Positions& positions, Problems* problems);

// Parameters of the model, the tied head counted once. REQUIRES: sizes are set; `vocabulary` 0 counts as the
// tokenizer's.
uint64_t CountParameters(const v1::Model& model);

// Tokens the job's tokenizer has: the least vocabulary.
uint32_t TokenizerVocabulary(v1::Tokenizer tokenizer);

// As a worker daemon may be called: 1 to 253 letters, digits, '-', '_' or '.'.
bool IsHostName(absl::string_view name);

// [a-z][a-z0-9-]{0,62}
bool IsJobName(absl::string_view name);

}  // namespace trainyard
