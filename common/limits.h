// Every limit of the control plane at one place, with the reason and the relations they must keep.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace trainyard::limits {

// The daemon's stream carries control only; what is larger has an RPC or a file of its own.
inline constexpr size_t kControlMessageBytes = 64 << 10;
// gRPC's own limit. A desired state names every trainer of a host with its spec, so it may be larger than one message
// of ours.
inline constexpr size_t kGrpcMessageBytes = 16 << 20;

inline constexpr size_t kStoreValueBytes = 64 << 10;
inline constexpr size_t kStoreGenerationBytes = 64 << 20;
static_assert(kStoreValueBytes <= kStoreGenerationBytes);

// Events waiting for the coordinator's core; beyond it readers stop reading.
inline constexpr size_t kCoreQueueEvents = 65'536;
inline constexpr size_t kJobsUnfinished = 10'000;
inline constexpr size_t kHosts = 8'192;

// Step reports: kept by a trainer while its daemon is away, by a daemon while the coordinator is, by the coordinator
// for watchers that join late or fall behind.
inline constexpr size_t kTrainerReports = 4'096;
inline constexpr size_t kDaemonReports = 4'096;
inline constexpr size_t kJobEvents = 65'536;
inline constexpr size_t kReportsPerMessage = 256;
// Reports waiting for the core; beyond it those of other ranks than 0 are thinned.
inline constexpr size_t kReportBytesQueued = 32 << 20;
// Facts waiting for the core; beyond it daemons' streams are not read, and facts wait in their outboxes.
inline constexpr size_t kFactBytesQueued = 32 << 20;

// Durable events: of a job, of which the first `kDurableEventsFirst` stay; of the cluster; their text; and all jobs'
// together. Beyond that what repeats itself goes first, then what finished jobs have beyond `kDurableEventsOfFinished`,
// the oldest jobs first. A job has some dozens of them, so a thousand finished jobs stay far below the limit. What goes
// is counted (JobRecord.events_dropped).
inline constexpr size_t kDurableEvents = 2'000;
inline constexpr size_t kDurableEventsFirst = 100;
inline constexpr size_t kDurableEventsOfFinished = 16;
static_assert(kDurableEventsOfFinished < kDurableEventsFirst && kDurableEventsFirst < kDurableEvents);
inline constexpr size_t kClusterEvents = 10'000;
inline constexpr size_t kDurableTextBytes = 2 << 10;
inline constexpr size_t kDurableEventBytes = 128 << 20;
// Ids of jobs that were pushed out of the history: what a host that was away for long still runs of them is ended.
inline constexpr size_t kJobsForgotten = 10'000;
// Checkpoints that a restore passed over, newest first; the log of rank 0 has all.
inline constexpr int kPassedOverTold = 8;
// Of them in one answer; a client asks for the rest by itself.
inline constexpr size_t kEventsPageBytes = 4 << 20;
static_assert(kEventsPageBytes + 2 * kDurableTextBytes < kGrpcMessageBytes);
// Step and evaluation reports that are made durable before a rank's end is acknowledged, newest of a job.
inline constexpr size_t kDurableReports = 4'096;

// Links of trainers to a daemon. Each has one message with it at most, which bounds the daemon's queue of events.
inline constexpr size_t kLinks = 8'192;

inline constexpr size_t kFactsPerMessage = 64;
inline constexpr size_t kFactsUnacknowledged = 65'536;
// Of them, in the daemon's memory and on its disk; beyond it trainers keep what they tell.
inline constexpr size_t kOutboxBytes = 64 << 20;
inline constexpr size_t kLastLines = 20;
inline constexpr size_t kLogLineBytes = 16 << 10;
inline constexpr size_t kPathBytes = 4'000;
// Lines of the log that wait for a reader of standard error; beyond it they are dropped and counted.
inline constexpr size_t kLogQueueBytes = 1 << 20;
// /metrics: connections at once, of which the oldest gives way to the next; a request's size; how long a client may
// take for its request, and then for reading the answer.
inline constexpr size_t kScrapeConnections = 64;
inline constexpr size_t kScrapeRequestBytes = 8 << 10;
inline constexpr absl::Duration kScrapeWait = absl::Seconds(5);
// sockaddr_un holds 108 bytes with the ending zero.
inline constexpr size_t kSocketPathBytes = 107;

// A daemon tries again after 50 ms, doubling up to 1 s.
inline constexpr absl::Duration kReconnectMin = absl::Milliseconds(50);
inline constexpr absl::Duration kReconnectMax = absl::Seconds(1);
// A port or a state lock that is held is tried again for so long: the predecessor may be on its way out.
inline constexpr absl::Duration kTakeOverWait = absl::Seconds(2);
// From the wish that a trainer stop to SIGKILL.
inline constexpr absl::Duration kStopGrace = absl::Seconds(10);

// What this version speaks on the control streams, newest and oldest; two sides use the newest that both do.
// 2: rendezvous values travel on the daemon's stream. 3: a daemon leaves the trainers of `unknown_jobs` alone.
inline constexpr uint32_t kProtocol = 3;
inline constexpr uint32_t kUnknownJobsProtocol = 3;
inline constexpr uint32_t kOldestProtocol = 2;
static_assert(kOldestProtocol <= kProtocol);

}  // namespace trainyard::limits
