// The limits of the HTTP port of a coordinator or worker daemon. limits.h has those of connections that are not streams
// and of the heads of requests (kScrapeConnections, kScrapeRequestBytes, kScrapeWait).
#pragma once

#include <cstddef>

#include "absl/time/time.h"
#include "common/limits.h"

namespace trainyard::limits {

// Open streams of events, logs and watched jobs. Together with kScrapeConnections, the limit of other connections, it
// leaves file descriptors for the store.
inline constexpr size_t kHttpStreams = 96;
// The size of one request's body, and of all bodies together. A spec is longer in JSON, with escapes, than in protobuf.
inline constexpr size_t kHttpBodyBytes = 4 << 20;
inline constexpr size_t kHttpBodiesBytes = 32 << 20;
// A body may take kScrapeWait plus its size divided by this rate to arrive; the reader of a text that the server sends
// may take kHttpReaderWait plus the text's size divided by this rate.
inline constexpr size_t kHttpBytesPerSecond = 64 << 10;
// The time in which a handler must answer a request. It is longer than the longest deadline of a call.
inline constexpr absl::Duration kHttpAnswerWait = absl::Seconds(75);
// When this many bytes of a stream wait to be sent, its handler must wait, too.
inline constexpr size_t kHttpStreamBytes = 256 << 10;
// The time that a reader has for each text, apart from its size (kHttpBytesPerSecond).
inline constexpr absl::Duration kHttpReaderWait = absl::Seconds(20);
// A quiet stream sends a comment this often, so that its reader notices a lost connection.
inline constexpr absl::Duration kHttpHeartbeat = absl::Seconds(5);
// The default and the longest deadline of a call in JSON.
inline constexpr absl::Duration kHttpCallWait = absl::Seconds(10);
inline constexpr absl::Duration kHttpCallWaitMax = absl::Seconds(60);
static_assert(kHttpCallWaitMax < kHttpAnswerWait);

}  // namespace trainyard::limits
