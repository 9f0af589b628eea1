// Every limit of the control plane at one place, with the reason and the relations they must keep.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace trainyard::limits {

// The daemon's stream carries control only; what is larger has an RPC or a file of its own.
inline constexpr size_t kControlMessageBytes = 64 << 10;
// gRPC's own limit. A desired state names every trainer of a host with its spec, so it may be larger than one message of ours.
inline constexpr size_t kGrpcMessageBytes = 16 << 20;

inline constexpr size_t kStoreValueBytes = 64 << 10;
inline constexpr size_t kStoreGenerationBytes = 64 << 20;
static_assert(kStoreValueBytes <= kStoreGenerationBytes);

// Events waiting for the coordinator's core; beyond it readers stop reading.
inline constexpr size_t kCoreQueueEvents = 65'536;
inline constexpr size_t kJobsUnfinished = 10'000;
inline constexpr size_t kHosts = 8'192;

// Step reports: kept by a trainer while its daemon is away, by a daemon while the coordinator is, by the coordinator for
// watchers that join late or fall behind.
inline constexpr size_t kTrainerReports = 4'096;
inline constexpr size_t kDaemonReports = 4'096;
inline constexpr size_t kJobEvents = 65'536;
inline constexpr size_t kReportsPerMessage = 256;

inline constexpr size_t kFactsPerMessage = 64;
inline constexpr size_t kFactsUnacknowledged = 65'536;
inline constexpr size_t kLastLines = 20;
inline constexpr size_t kLogLineBytes = 16 << 10;
inline constexpr size_t kPathBytes = 4'000;
// sockaddr_un holds 108 bytes with the ending zero.
inline constexpr size_t kSocketPathBytes = 107;

// A daemon tries again after 50 ms, doubling up to 1 s.
inline constexpr absl::Duration kReconnectMin = absl::Milliseconds(50);
inline constexpr absl::Duration kReconnectMax = absl::Seconds(1);
// A port or a state lock that is held is tried again for so long: the predecessor may be on its way out.
inline constexpr absl::Duration kTakeOverWait = absl::Seconds(2);
// From the wish that a trainer stop to SIGKILL.
inline constexpr absl::Duration kStopGrace = absl::Seconds(10);

inline constexpr uint32_t kProtocol = 1;

}  // namespace trainyard::limits
