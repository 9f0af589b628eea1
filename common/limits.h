// All limits of the control plane in one place, with reasons and with the relations between them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace trainyard::limits {

// The daemon's stream carries control messages only; larger data has an RPC of its own or a file.
inline constexpr size_t kControlMessageBytes = 64 << 10;
// The limit that gRPC enforces. A desired state names every trainer of a host with its spec, so it may be larger than
// one control message.
inline constexpr size_t kGrpcMessageBytes = 16 << 20;

// One rendezvous value, and all rendezvous values of a generation.
inline constexpr size_t kStoreValueBytes = 64 << 10;
inline constexpr size_t kStoreGenerationBytes = 64 << 20;
static_assert(kStoreValueBytes <= kStoreGenerationBytes);

// Events waiting for the coordinator's core. Beyond this limit the streams are not read.
inline constexpr size_t kCoreQueueEvents = 65'536;
// Jobs that have not ended, and hosts that the coordinator knows. Beyond these limits new ones are refused.
inline constexpr size_t kJobsUnfinished = 10'000;
inline constexpr size_t kHosts = 8'192;

// Step reports that are stored: by a trainer while it has no daemon, by a daemon while it has no coordinator, and by
// the coordinator for watchers that join late or fall behind.
inline constexpr size_t kTrainerReports = 4'096;
inline constexpr size_t kDaemonReports = 4'096;
inline constexpr size_t kJobEvents = 65'536;
// Step reports in one message of a trainer or of a daemon.
inline constexpr size_t kReportsPerMessage = 256;
// Reports waiting for the core. Beyond this limit some reports of ranks other than 0 are dropped.
inline constexpr size_t kReportBytesQueued = 32 << 20;
// Facts waiting for the core. Beyond this limit the daemons' streams are not read and facts wait in their outboxes.
inline constexpr size_t kFactBytesQueued = 32 << 20;

// Durable events. A job has at most `kDurableEvents`, of which the first `kDurableEventsFirst` are deleted last; the
// cluster has at most `kClusterEvents`. `kDurableTextBytes` limits the text of one event, and `kDurableEventBytes` the
// events of all jobs together: beyond it, saves and notices without a decision are deleted first, then other events of
// finished jobs beyond `kDurableEventsOfFinished`, oldest jobs first.
// A job has some dozens of events, so a thousand finished jobs stay far below the limit. Deleted events are counted
// (JobRecord.events_dropped).
inline constexpr size_t kDurableEvents = 2'000;
inline constexpr size_t kDurableEventsFirst = 100;
inline constexpr size_t kDurableEventsOfFinished = 16;
static_assert(kDurableEventsOfFinished < kDurableEventsFirst && kDurableEventsFirst < kDurableEvents);
inline constexpr size_t kClusterEvents = 10'000;
inline constexpr size_t kDurableTextBytes = 2 << 10;
inline constexpr size_t kDurableEventBytes = 128 << 20;
// Ids of jobs that were deleted from the history. A host that returns after a long absence may still run trainers of
// these jobs, and must end them. A call of Submit that is repeated late must not submit one of these jobs again.
inline constexpr size_t kJobsForgotten = 100'000;
// Checkpoints that a restore rejected, newest first, as reported by a trainer. The log of rank 0 lists all of them.
inline constexpr int kRejectedCheckpointsReported = 8;
// The bytes of events in one response. The client library requests the rest automatically.
inline constexpr size_t kEventsPageBytes = 4 << 20;
static_assert(kEventsPageBytes + 2 * kDurableTextBytes < kGrpcMessageBytes);
// This many of the newest step and evaluation reports of a job are made durable before a rank's end is acknowledged.
inline constexpr size_t kDurableReports = 4'096;

// The record of a job must fit into one entry of the coordinator's store, whose limit is 1 MiB. The record contains the
// spec twice, so a new job has at most `kJobRecordBytes`, although a spec may have 1 MiB. The rest is for what is added
// later: recorded checkpoints (beyond this size the oldest are dropped from the record; their files stay), and grants,
// avoided hosts, decisions of hosts and reasons, each with its own limit.
inline constexpr size_t kJobRecordBytes = 640 << 10;
inline constexpr size_t kCheckpointRecordBytes = 128 << 10;

// Connections of trainers to a daemon. Each has at most one unprocessed message, which bounds the daemon's event queue.
inline constexpr size_t kLinks = 8'192;

// Facts in one message of a daemon, and facts in its outbox.
inline constexpr size_t kFactsPerMessage = 64;
inline constexpr size_t kFactsUnacknowledged = 65'536;
// The bytes of the outbox, in memory and on disk. Beyond this limit trainers keep their facts.
inline constexpr size_t kOutboxBytes = 64 << 20;
// The last lines of output that the exit record of a trainer contains.
inline constexpr size_t kLastLines = 20;
// A longer line of output is divided.
inline constexpr size_t kLogLineBytes = 16 << 10;
// Requests for output that the coordinator sends to a daemon at the same time. Each is a thread and a stream there.
inline constexpr size_t kLogRequestsPerHost = 64;
// Open streams of JobService.Watch and Logs, in all and for the callers at one address. Each needs about 50 KiB.
inline constexpr size_t kReaderStreams = 16'384;
inline constexpr size_t kReaderStreamsOfAddress = 4'096;
static_assert(kReaderStreamsOfAddress < kReaderStreams);
// A path or another string in a job file or a request.
inline constexpr size_t kPathBytes = 4'000;
// Log lines that wait until standard error is read. Beyond this limit lines are dropped and counted.
inline constexpr size_t kLogQueueBytes = 1 << 20;
// The HTTP port, which also serves /metrics: simultaneous connections that are not streams (a new one replaces the
// oldest), the size of the head of a request, and how long a client may take to send the head.
inline constexpr size_t kScrapeConnections = 64;
inline constexpr size_t kScrapeRequestBytes = 8 << 10;
inline constexpr absl::Duration kScrapeWait = absl::Seconds(5);
// The path of a Unix socket: sockaddr_un has space for 108 bytes, including the terminating zero.
inline constexpr size_t kSocketPathBytes = 107;

// A daemon reconnects after 50 ms, doubling up to 1 s.
inline constexpr absl::Duration kReconnectMin = absl::Milliseconds(50);
inline constexpr absl::Duration kReconnectMax = absl::Seconds(1);
// How long a daemon waits for a port or a lock that another process holds, which may be an earlier daemon that is about
// to exit.
inline constexpr absl::Duration kTakeOverWait = absl::Seconds(2);
// The time from the request to stop a trainer until it is killed (SIGKILL). The coordinator waits longer for a job with
// long steps. A command is killed after `command.grace_s`, and when its daemon stops, after at most kStopGrace.
inline constexpr absl::Duration kStopGrace = absl::Seconds(10);

// The newest and the oldest protocol of the control streams that this version speaks. A daemon and a coordinator use
// the newest that both speak. 2: rendezvous values travel on the daemon's stream. 3: a daemon leaves the trainers of
// `unknown_jobs` running.
inline constexpr uint32_t kProtocol = 3;
inline constexpr uint32_t kUnknownJobsProtocol = 3;
inline constexpr uint32_t kOldestProtocol = 2;
static_assert(kOldestProtocol <= kProtocol);

// Files of tokenizers come from outside. The largest known tokenizer.json has 35 MB.
inline constexpr uint64_t kTokenizerFileBytes = 128 << 20;
inline constexpr size_t kAddedTokens = 1 << 20;
inline constexpr size_t kAddedTokenBytes = 1 << 10;
inline constexpr size_t kTokenizerSteps = 64;  // of a Sequence in tokenizer.json, including nested ones
inline constexpr size_t kTokenizerPatternBytes = 16 << 10;
// The steps and the heap of one search of a pattern in a text. A search that needs more fails.
inline constexpr uint32_t kPatternSteps = 100'000'000;
inline constexpr uint32_t kPatternHeapKiB = 1 << 20;
// The size of a text, and of a part of it that cannot be divided because tokens may cross every position in it. Such a
// part is tokenized as a whole, which needs about 32 bytes of memory for each character.
inline constexpr size_t kTokenizerTextBytes = 1 << 30;
inline constexpr size_t kTokenizerWordBytes = 32 << 20;

}  // namespace trainyard::limits
