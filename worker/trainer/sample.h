// trainyard-trainer sample: continues prompts with a model and prints the texts. It carries out `trainctl sample`.
#pragma once

#include "worker/trainer/options.h"

namespace trainyard {

// Returns the exit code: 0; 1 if standard output cannot be written; 2 if the model or a prompt cannot be used; 130
// after Ctrl-C. Errors are printed to standard error.
int RunSample(const SampleOptions& options);

}  // namespace trainyard
