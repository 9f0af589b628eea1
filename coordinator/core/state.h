// The state of the core: one struct that only turns (turn.h, handlers/) change, on one thread. Durable parts are
// marked; the rest is soft and is rebuilt when daemons attach again and clients repeat their calls.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/phase.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"
#include "coordinator/core/history.h"
#include "coordinator/policy/forecast.h"
#include "coordinator/policy/hang.h"
#include "coordinator/policy/health.h"
#include "coordinator/policy/network.h"
#include "coordinator/policy/queue_rules.h"
#include "coordinator/policy/straggler.h"
#include "trainyard/v1/store.pb.h"

namespace trainyard {

struct CoreOptions {
  std::string cluster_id;
  Incarnation incarnation;  // of this coordinator process
  absl::Duration lease = absl::Seconds(3);
  uint32_t finished_jobs = 1000;  // the number of finished jobs that are kept
  bool webhooks = true;           // accept jobs with on_end.webhook, and send webhooks
  QueueRules queue = {};
};

// A request to a daemon to examine the process of a rank.
struct ExaminationCall {
  std::string request_id;
  absl::Time requested_at;
  bool with_stack = false;
  std::optional<v1::Examination> answer;
};

// A request to a host to check whether it has a path.
struct PathQuery {
  std::string request_id;
  std::string path;
  absl::Time requested_at;
  std::optional<v1::PathAnswer> answer;
};

// One rank of a job's current generation. `record` is durable.
struct Rank {
  v1::RankRecord record;
  uint32_t local_rank = 0;
  uint32_t local_world_size = 0;

  // Soft.
  ReportedPhase phase = Phase::kStarting;
  uint64_t last_step = 0;
  absl::Time last_report = absl::InfinitePast();
  bool seen_running = false;     // this coordinator has received its `started`, or a Hello that lists it
  bool reported_broken = false;  // it reported a broken collective
  // Since when its host is attached without listing it and without reporting its exit; infinite: it is not missing.
  absl::Time missing_since = absl::InfiniteFuture();
  uint64_t removed_at_revision = 0;  // the first desired state without it; 0: still desired, or its host is away
  absl::Time dropped_at = absl::InfiniteFuture();  // since when its host is known to be ending it
  bool was_removed = false;  // an earlier daemon of its host was to end it, which the present one may not know
  absl::Time step_at = absl::InfinitePast();  // when its newest step was completed, as far as reported
  RankPosition position;                      // the input of hang detection
  double cpu_s = 0;                           // CPU time of its process, as reported at `cpu_at`
  absl::Time cpu_at = absl::InfinitePast();
  std::optional<ExaminationCall> examination;
  ComputeWindow compute_window;
  WaitTrend wait_trend;
  absl::Time slow_since = absl::InfiniteFuture();
  bool straggler = false;
  std::vector<v1::MemoryUse> memory;  // as last reported

  bool exited() const { return record.has_exit(); }
  // Its exit was reported, or it is known to be gone without one.
  bool ended() const { return record.has_exit() || !record.gone().empty(); }
  HostName host() const { return HostName(record.host()); }
};

// The write-once values that the ranks of a generation exchange to connect. Soft: daemons put them again after they
// have attached again.
struct ValueStore {
  std::map<std::string, ValuePtr> values;
  std::shared_ptr<ValueLog> log;  // the same values; null: the group has formed or has ended, so no host needs them
  size_t bytes = 0;
  bool sealed = false;
  SessionList sessions;               // of the generation's hosts; null: not made yet
  uint64_t session_changes_seen = 0;  // the value of State::session_changes when `sessions` was made
};

// The progress of a running group as a whole: whether it hangs, and since when.
struct HangWatch {
  uint64_t generation = 0;                            // the generation that the other fields describe; 0: none runs
  absl::Time since = absl::InfinitePast();            // no stall began before this
  absl::Time progress_at = absl::InfinitePast();      // when any rank last made progress
  std::set<uint32_t> suspects;                        // ranks that others wait for during a stall
  std::string published;                              // the reason of the published stall that still lasts; empty: none
  bool published_is_learned = false;                  // HangDecision::learned of that stall
  bool stalled = false;                               // the newest decision found a stall
  absl::Time stalled_since = absl::InfiniteFuture();  // start of the published stall
};

// The training time in the ledger of goodput when rank 0 reported this step as completed.
struct StepMark {
  uint64_t step = 0;
  uint64_t train_ms = 0;
};

// What is known of the current generation beyond its ranks. Soft. BeginGeneration (handlers/begin_generation.h)
// replaces it as a whole; a coordinator that finds the job in its store derives it from the records (records.cc).
struct GenerationState {
  bool nothing_desired = true;                            // its trainers are not in any desired state
  bool stop = false;                                      // its trainers are asked to stop at the next step
  absl::Time drop_at = absl::InfiniteFuture();            // when a grace ends and trainers leave the desired state
  absl::Time drop_by = absl::InfiniteFuture();            // the latest time for drop_at, even during a save
  absl::Time finished_at = absl::InfiniteFuture();        // when the last rank reported that all steps are made
  absl::Time unreachable_since = absl::InfiniteFuture();  // since when none of its hosts can be reached
  absl::Time progress_at = absl::InfinitePast();          // last progress in forming the group
  absl::Time running_since = absl::InfiniteFuture();      // when the group was first seen running; infinite: it was not
  absl::Time reports_until = absl::InfiniteFuture();      // until when step reports in transit are awaited
  absl::Time more_fit_since = absl::InfiniteFuture();     // since when slots for more ranks of a command are free
  bool stop_overdue = false;                              // a stop was undone that its ranks may still carry out
  std::set<HostName> unconfirmed;                         // hosts of a job from the store that have not attached yet
  ValueStore store;
  std::deque<StepMark> step_marks;  // of the newest steps, by step
  HangWatch hang;
  bool failure_counted = false;   // its failure is in the metrics
  bool network_slow = false;      // a notice that its ranks wait for the network was published
  bool saves_on_request = false;  // the script of a command has called should_save
};

struct Job {
  JobId id;

  // Durable (JobRecord). `record.job` has no ranks; they are below.
  v1::JobRecord record;
  std::vector<Rank> ranks;
  std::map<HostName, std::vector<uint32_t>> ranks_on;  // an index of `ranks` by host
  // Whether the host has ranks that have not ended. A job that waits for slots still has the ranks of its last group.
  bool HasRanksLeftOn(const HostName& host) const {
    const auto on = ranks_on.find(host);
    return on != ranks_on.end() &&
           std::any_of(on->second.begin(), on->second.end(), [this](uint32_t rank) { return !ranks[rank].ended(); });
  }

  // Durable, written about once a second (PublishedRecord): the newest published reports.
  v1::PublishedRecord published;
  bool published_changed = false;

  GenerationState current;

  // Soft, and not specific to a generation.
  absl::Time restart_at = absl::InfinitePast();     // not placed again before this
  double longest_s = 0;                             // the longest step, evaluation or save, for which a stop may wait
  std::map<HostName, PathQuery> path_queries;       // for its newest checkpoint, while none of its hosts can be reached
  bool abandon_refused = false;                     // it was published that no other host has its newest checkpoint
  uint64_t reports_dropped = 0;                     // dropped step reports that no notice has counted yet
  absl::Time drops_since = absl::InfiniteFuture();  // when a drop was last published; infinite: not recently
  // For each key set to `auto` that only hosts can decide: the value and the reason of each host.
  std::map<std::string, std::map<HostName, v1::ResolvedKey>> host_decisions;
  std::map<Phase, PhaseTimes> phase_times;            // how long each phase takes (JobRecord.phases keeps the longest)
  absl::Time unlearned_until = absl::InfinitePast();  // phase times that began earlier include a stall and are ignored
  absl::Time stragglers_checked_at = absl::InfinitePast();
  std::map<HostName, absl::Time> avoid_until;  // for each of `record.avoided`: not placed there before this
  // A host runs this generation, which the store does not know, because the store was restored from an older copy. The
  // number is above the recorded one, or it is the same, and the recorded group with that number was placed on other
  // hosts. The job is held: its trainers are left alone, and none is started. 0: the job is not held.
  uint64_t held_at = 0;
  // The recorded generation when this coordinator loaded the job from its store; none: the job was submitted later. An
  // older store does not know the generations after this one.
  std::optional<uint64_t> loaded_generation;
  absl::Time waiting_since = absl::InfinitePast();  // since when it waits for slots
  bool left_slots = false;                          // the slots of its last group are no longer kept for it
  bool left_memory = false;                         // the snapshots of its last group are no longer kept
  absl::Time spared_until = absl::InfinitePast();   // not preempted before this (JobRecord.spared_until_unix_ms)
  uint32_t failures_without_progress = 0;
  uint64_t step_at_last_failure = 0;
  std::string last_error;    // of the last failure (FailureRecord.error)
  uint32_t same_errors = 0;  // the number of failures in a row with that error

  // The events for watchers. Durable events have records of their own. The daemon of rank 0 sends step and evaluation
  // reports again, in order, so a report is new if it is above the newest one that this coordinator has received.
  History history;
  uint64_t last_sequence = 0;
  uint64_t reported_step = 0;
  uint64_t reported_eval = 0;
  std::map<WatchId, WatchPosition> waiting_watchers;  // watchers that have received all events

  // The parts of the reports that are stored (ReportPart), because no daemon has them any more, and the sequence number
  // up to which reports are stored.
  std::set<uint64_t> stored_parts;
  uint64_t stored_sequence = 0;

  v1::JobState state() const { return record.job().state(); }
  // Whether the group forms: its ranks start, load and connect.
  bool forming() const { return state() == v1::JOB_STATE_PLACED || state() == v1::JOB_STATE_STARTING; }
  v1::Job& head() { return *record.mutable_job(); }
  const v1::Job& head() const { return record.job(); }
  Generation generation() const { return Generation(record.job().generation()); }
  uint64_t version() const { return record.event_sequence(); }  // Job.resource_version
  // A job that an earlier version recorded has neither a namespace nor a priority; the defaults apply.
  std::string namespace_name() const {
    const std::string& name = record.job().spec().namespace_();
    return name.empty() ? kDefaultNamespace : name;
  }
  uint32_t priority() const { return record.job().has_priority() ? record.job().priority() : kDefaultPriority; }
  // The number of ranks; of a job that may run with fewer ranks, the largest number.
  uint32_t world_size() const { return record.job().spec().resources().ranks(); }
  // The smallest number of ranks that a generation may have.
  uint32_t min_world_size() const {
    const v1::Command& command = record.job().spec().command();
    return command.has_min_ranks() ? command.min_ranks() : world_size();
  }
};

// The delayed acknowledgement of the end of a rank 0, whose newest step reports are still on their way
// (late_reports.h).
struct DelayedAck {
  uint64_t fact = 0;  // the sequence number of the fact
  absl::Time until;   // when it is acknowledged without the reports
};

struct Host {
  HostName name;
  v1::HostRecord record;  // durable

  // Soft.
  SessionId session;  // value 0: not attached
  std::string peer;
  uint32_t slots = 0;
  uint32_t max_slots = 0;  // the largest number that it has reported to this coordinator
  v1::Inventory inventory;
  absl::Time last_contact = absl::InfinitePast();
  absl::Time attached_at = absl::InfinitePast();
  HeartbeatGaps gaps;
  absl::Duration lease;    // grows if its messages arrive unevenly
  bool reachable = false;  // as last checked; changes are published
  uint64_t applied_revision = 0;
  uint64_t applied_fact = 0;  // its facts up to here were applied; `record.acked_fact` may be lower
  std::map<JobId, DelayedAck> delayed_acks;
  bool draining = false;  // its daemon is about to leave
  std::string trouble;    // why it can run no trainer now; empty: it can
  absl::Duration clock_offset;
  ArrivalTrend arrivals;
  uint64_t disk_free_bytes = 0;
  bool disk_full = false;                // it was published that the disk is full
  std::set<JobId> jobs;                  // jobs whose current generation has ranks here
  std::vector<v1::RunningTrainer> held;  // trainers of held jobs; they are left alone
  std::vector<v1::TrainerKey> unknown;   // trainers of unknown jobs; they are left alone, too
  std::vector<v1::TrainerKey> strays;    // trainers of past generations; they use slots until they have exited
  // Strays that the host has not reported yet, each with a revision. If the host applies that revision and has still
  // not reported the stray, its trainer was never started.
  std::vector<std::pair<v1::TrainerKey, uint64_t>> unstarted_strays;

  bool attached() const { return session.value() != 0; }
  // HostStatus.resource_version; 1 if a coordinator of an earlier version wrote the record, which then has none.
  uint64_t version() const { return std::max<uint64_t>(record.version(), 1); }
  Incarnation incarnation() const { return Incarnation(record.incarnation()); }
};

// One reader of output, and the requests it has at hosts.
struct LogReader {
  ReaderId id;
  v1::LogsRequest request;
  std::map<std::string, HostName> open;  // request id → host that pushes under it
  std::set<HostName> requested;          // hosts with a request for the current generation
  uint32_t next_request = 1;
  absl::Time close_at = absl::InfiniteFuture();  // the job has ended; lines in transit may still arrive until then
};

struct State {
  CoreOptions options;
  absl::Time started_at;
  absl::Duration away;          // by how much the core's time is behind the steady clock, after the process was stopped
  absl::Duration wall_ahead;    // by how much the wall clock was ahead of the steady clock when that was last recorded
  bool hosts_had_time = false;  // HostsHadTime was true in a tick, and the waiting jobs were considered then

  std::map<JobId, Job> jobs;
  std::map<uint64_t, JobId> by_submission;  // submit index → job
  uint64_t next_submit_index = 1;
  std::set<uint64_t> queue;                              // submit indexes of jobs that wait for slots
  std::set<uint64_t> overdue;                            // those that may no longer be overtaken
  std::set<uint64_t> preempting;                         // those for which other jobs are being ended
  std::set<uint64_t> queued_again;                       // those that start again (JobRecord.admitted)
  std::map<std::string, uint64_t> queued;                // the number of waiting jobs by namespace
  std::map<std::string, uint64_t> unfinished;            // the number of unfinished jobs by namespace
  std::map<std::string, uint64_t> preemptions;           // since the start of this coordinator, by namespace
  std::set<JobId> active;                                // jobs with HasTrainers(state)
  std::set<JobId> with_path_queries;                     // jobs with path_queries
  absl::Time published_saved_at = absl::InfinitePast();  // when PublishedRecords were last written
  std::deque<JobId> finished;                            // oldest first
  std::set<JobId> unknown;                               // jobs that hosts run and this store does not know
  // Durable: jobs that were removed from the history, or unknown jobs that were cancelled, oldest first. A trainer of
  // such a job is a leftover; without this list it would look like a trainer of a job that only a newer store records.
  std::map<uint64_t, JobId> forgotten;
  absl::flat_hash_set<JobId> forgotten_ids;

  std::map<JobId, Forecast> forecasts;  // of the head of the queue, made at `forecast_at`
  absl::Time forecast_at = absl::InfinitePast();

  std::map<HostName, Host> hosts;
  absl::flat_hash_map<SessionId, HostName> sessions;
  uint64_t session_changes = 0;                             // counts streams that opened or ended
  absl::flat_hash_map<Incarnation, HostName> incarnations;  // current ones
  std::map<ReaderId, LogReader> readers;

  // Durable: changes of hosts, states of jobs. Has its own limit.
  History cluster{{.durable = limits::kClusterEvents, .first = 0, .reports = 0}};
  uint64_t cluster_sequence = 0;
  uint64_t durable_bytes = 0;        // of all jobs' durable events
  std::vector<std::string> orphans;  // keys of records without the record they belong to
};

// Adds the job to the queue, or removes it, and updates the sets and counts of `state` that depend on it.
void EnterQueue(State& state, Job& job, absl::Time now);
void LeaveQueue(State& state, Job& job);

}  // namespace trainyard
