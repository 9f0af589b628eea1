// The limits of the HTTP port of a daemon, in addition to those for the connections and the heads of requests
// (kScrapeConnections, kScrapeRequestBytes, kScrapeWait in limits.h).
#pragma once

#include <cstddef>

#include "absl/time/time.h"
#include "common/limits.h"

namespace trainyard::limits {

// Open streams (of events, logs and watched jobs), in addition to the connections of requests. Both limits together
// leave descriptors for the store.
inline constexpr size_t kHttpStreams = 96;
// The body of a request (a spec in JSON with escapes is longer than in protobuf), and all bodies together.
inline constexpr size_t kHttpBodyBytes = 4 << 20;
inline constexpr size_t kHttpBodiesBytes = 32 << 20;
// A body may take kScrapeWait plus its size divided by this rate to arrive; the reader of a text that the server sends
// may take kHttpReaderWait plus the text's size divided by this rate.
inline constexpr size_t kHttpBytesPerSecond = 64 << 10;
// A handler must have answered within this time: longer than the longest deadline of a call.
inline constexpr absl::Duration kHttpAnswerWait = absl::Seconds(75);
// The bytes that wait for the reader of a stream before the stream's handler must wait, and the reader's time for one
// text.
inline constexpr size_t kHttpStreamBytes = 256 << 10;
inline constexpr absl::Duration kHttpReaderWait = absl::Seconds(20);
// A quiet stream sends a comment this often, so that its reader notices a lost connection.
inline constexpr absl::Duration kHttpHeartbeat = absl::Seconds(5);
// The default and the longest deadline of a call in JSON.
inline constexpr absl::Duration kHttpCallWait = absl::Seconds(10);
inline constexpr absl::Duration kHttpCallWaitMax = absl::Seconds(60);
static_assert(kHttpCallWaitMax < kHttpAnswerWait);

}  // namespace trainyard::limits
