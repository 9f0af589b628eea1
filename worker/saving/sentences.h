// Exchanges one sentence per rank, as the bytes of a tensor, so that every rank can report what single ranks found.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/collectives/communicator.h"
#include "worker/link/config.h"

namespace trainyard {

// Returns "rank 1 on w2: <what>".
std::string RankSentence(const StartOrder& order, absl::string_view what);

// Collective. Returns the non-empty sentences, in the order of the ranks. A sentence longer than a kilobyte is cut.
// Possible errors: those of a Collective.
absl::StatusOr<std::vector<std::string>> ShareSentences(absl::string_view own, Communicator& communicator);

}  // namespace trainyard
