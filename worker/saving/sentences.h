// What single ranks have to say, so that every rank can report it: a sentence each, as the bytes of a tensor.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/collectives/communicator.h"
#include "worker/link/config.h"

namespace trainyard {

// "rank 1 on w2: <what>".
std::string RankSentence(const StartOrder& order, absl::string_view what);

// Collective: the sentences that are not empty, in the order of the ranks. One that is longer than a kilobyte is cut.
// Possible errors: those of a Collective.
absl::StatusOr<std::vector<std::string>> ShareSentences(absl::string_view own, Communicator& communicator);

}  // namespace trainyard
