// Checks of `train.data`: where the data comes from, and which fields of its lines are used. Pure.
#pragma once

#include <string>

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// The file or folder of the tokenizer: the one that the job names, or else the folder of its model. Empty: each byte is
// a token, or the data contains tokens. REQUIRES: no defaults have been filled in.
std::string TokenizerPathOf(const v1::Train& train);

void CheckDataSource(const v1::Train& train, const Positions& positions, Problems* problems);

}  // namespace trainyard
