// Checks a job beyond the ranges of single fields, and finds keys that have no effect. Lists all problems, each with
// its numbers and the valid choices. Pure.
#pragma once

#include <cstdint>

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// REQUIRES: DropInvalid has removed values out of range from `spec`. The preset is applied, but defaults are not, so
// that given keys can be distinguished from missing ones. `positions` may be empty. Takes about a millisecond for any
// numbers, because no loop is longer than the fields' limits allow.
void ValidateJob(const v1::JobSpec& spec, const Positions& positions, Problems* problems);

// Returns the number of elements of all parameters, without adapters; the tied head counts once. REQUIRES: sizes are
// set; `vocabulary` may be unset.
uint64_t CountParameters(const v1::Model& model);

// Returns the number of tokens of the tokenizer, which is the smallest vocabulary of a model.
uint32_t TokenizerVocabulary(v1::Tokenizer tokenizer);

// Returns whether a worker daemon may have this name: 1 to 253 letters, digits, '-', '_' or '.'.
bool IsHostName(absl::string_view name);

// Returns whether a job may have this name: [a-z][a-z0-9-]{0,62}.
bool IsJobName(absl::string_view name);

}  // namespace trainyard
