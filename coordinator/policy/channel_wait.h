// Recognises the waits of a channel (worker/collectives/channel.h) in the reports of ranks.
#pragma once

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// Pure. `waits_in` as in CommunicatorReport: "receive 17 (chunk 1, micro-batch 3)" and "room for packet 19 (chunk 0,
// micro-batch 5)" are waits of a channel, and "all-reduce 17 (8 x fp64)" is not. Stages of a pipeline wait for each
// other in different channels, while the ranks of a collective all wait in the same operation.
inline bool IsChannelWait(absl::string_view waits_in) {
  return absl::StartsWith(waits_in, "receive ") || absl::StartsWith(waits_in, "room for packet ");
}

}  // namespace trainyard
