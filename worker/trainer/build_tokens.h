// trainyard-trainer build-tokens: builds the token caches that the ranks of a job would build at its start, so that the
// job finds them complete. It carries out `trainctl tokenize --build`.
#pragma once

#include "worker/trainer/options.h"

namespace trainyard {

// Returns the exit code: 0; 1 if reading or writing fails; 2 if the job or its data cannot be used, also because a file
// is missing or access to it is denied; 130 after Ctrl-C, which keeps the chunks that are complete. Errors and progress
// are printed to standard error.
int RunBuildTokens(const BuildTokensOptions& options);

}  // namespace trainyard
