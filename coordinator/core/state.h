// Everything the core knows: one struct, changed by the functions of handlers/ alone, on one thread. What is durable is said
// at each part; the rest is soft and comes back by itself when daemons re-attach and clients ask again.
#pragma once

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
#include "coordinator/policy/hang.h"
#include "coordinator/policy/health.h"
#include "coordinator/policy/network.h"
#include "coordinator/policy/straggler.h"
#include "trainyard/v1/store.pb.h"

namespace trainyard {

struct CoreOptions {
  std::string cluster_id;
  Incarnation incarnation;  // of this life of the coordinator
  absl::Duration lease = absl::Seconds(3);
  uint32_t finished_jobs = 1000;  // kept
};

// A daemon was asked to look at a rank's process.
struct ExaminationCall {
  std::string request_id;
  absl::Time asked_at;
  bool with_stack = false;
  std::optional<v1::Examination> answer;
};

// A host was asked whether it has a path.
struct PathQuery {
  std::string request_id;
  std::string path;
  absl::Time asked_at;
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
  bool seen_running = false;     // told by `started` or by its host's Hello in this life of the coordinator
  bool reported_broken = false;  // told that a collective reported_broken
  absl::Time missing_since = absl::InfiniteFuture();  // its host attached without it and has not told its exit
  uint64_t removed_at_revision = 0;  // the desired state that first lacked it; 0: still desired, or host away
  absl::Time dropped_at = absl::InfiniteFuture();  // its host is known to be ending it since
  // Of its steps, as far as this life of the coordinator saw: when the newest was completed.
  absl::Time step_at = absl::InfinitePast();
  RankPosition position;  // what hangs are judged by
  double cpu_s = 0;       // of its process, as told at `cpu_at`
  absl::Time cpu_at = absl::InfinitePast();
  std::optional<ExaminationCall> examination;
  ComputeWindow computing;
  WaitTrend waiting;
  absl::Time slow_since = absl::InfiniteFuture();
  bool straggler = false;
  std::vector<v1::MemoryUse> memory;  // as told last

  bool exited() const { return record.has_exit(); }
  // Nothing of it runs any more, or counts: its exit was told, or it is known to be gone without one.
  bool ended() const { return record.has_exit() || !record.gone().empty(); }
  HostName host() const { return HostName(record.host()); }
};

// The write-once values that a generation's collectives meet through. Soft: daemons put theirs again after
// re-attaching.
struct ValueStore {
  std::map<std::string, ValuePtr> values;
  std::shared_ptr<ValueLog> log;  // the same ones; null: the group has formed, or is over, and nobody need have them
  size_t bytes = 0;
  bool sealed = false;
  SessionList sessions;  // of the generation's hosts, when State::session_changes was `sessions_of`; null: not made yet
  uint64_t sessions_of = 0;
};

// The progress of a running group as a whole: whether it hangs, and since when.
struct HangWatch {
  uint64_t generation = 0;                        // that the rest is of; 0: none runs
  absl::Time since = absl::InfinitePast();        // no stall began before
  absl::Time progress_at = absl::InfinitePast();  // when any rank last moved
  std::set<uint32_t> suspects;                    // ranks that others wait for, while nothing moves
  std::string published;                          // the published stall that still lasts; empty: none
  bool published_is_learned = false;
  bool stalled = false;                               // as last decided
  absl::Time stalled_since = absl::InfiniteFuture();  // of the published one
};

// What the ledger of goodput stood at when rank 0 told that this step was completed.
struct StepMark {
  uint64_t step = 0;
  uint64_t train_ms = 0;
};

// What is known of the current generation beyond its ranks. Soft. BeginGeneration (handlers/begin_generation.h) replaces
// it as a whole; a coordinator that finds the job in its store derives it from the records (records.cc).
struct GenerationState {
  bool nothing_desired = true;                            // its trainers are not in any desired state
  bool stop = false;                                      // its trainers are asked to stop at the next step
  absl::Time drop_at = absl::InfiniteFuture();            // when desired trainers are dropped: a grace ends
  absl::Time drop_by = absl::InfiniteFuture();            // the same, however long an evaluation or a save takes
  absl::Time finished_at = absl::InfiniteFuture();        // when the last rank reported that all steps are made
  absl::Time unreachable_since = absl::InfiniteFuture();  // since when none of its hosts can be reached
  absl::Time progress_at = absl::InfinitePast();          // last progress in forming the group
  absl::Time reports_until = absl::InfiniteFuture();      // until when step reports on their way are awaited
  std::set<HostName> unconfirmed;                         // hosts of a job from the store that have not attached yet
  ValueStore store;
  std::deque<StepMark> step_marks;  // of the newest steps, by step
  HangWatch hang;
  bool network_slow = false;  // a notice that its ranks wait for a network was published
};

struct Job {
  JobId id;

  // Durable (JobRecord). `record.job` has no ranks; they are below.
  v1::JobRecord record;
  std::vector<Rank> ranks;
  std::map<HostName, std::vector<uint32_t>> ranks_on;  // an index of `ranks`

  // Durable, late (PublishedRecord): how far watchers were told.
  v1::PublishedRecord published;
  bool published_changed = false;

  GenerationState current;

  // Soft: over generations.
  absl::Time restart_at = absl::InfinitePast();     // not placed again before
  double longest_s = 0;                             // longest step, evaluation or save: how long a stop may take
  std::map<HostName, PathQuery> path_queries;       // for its newest checkpoint, while it cannot be reached
  bool abandon_refused = false;                     // that it is not given up, as nobody else has that
  uint64_t reports_dropped = 0;                     // step reports whose loss was not published yet
  absl::Time drops_since = absl::InfiniteFuture();  // the first loss of a minute was published then; infinite: none
  // Of each `auto` that only hosts decide: what each of them came to, and why.
  std::map<std::string, std::map<HostName, v1::ResolvedKey>> host_decisions;
  std::map<Phase, PhaseTimes> phase_times;            // how long each phase takes (JobRecord.phases keeps the longest)
  absl::Time unlearned_until = absl::InfinitePast();  // phases that began before are not learned: they had a stall
  absl::Time stragglers_checked_at = absl::InfinitePast();
  std::map<HostName, absl::Time> avoid_until;  // of `record.avoided`: not placed there before
  // A host runs this generation, which is above the recorded one: the store is older than what runs (restored from a
  // copy). The job is held: nothing of it is ended, started or decided. 0: it is not.
  uint64_t held_at = 0;
  // Such a generation ran and has ended; the next one is numbered above it.
  uint64_t past_generation = 0;
  absl::Time waiting_since = absl::InfinitePast();  // for slots
  uint32_t failures_without_progress = 0;
  uint64_t step_at_last_failure = 0;

  // What watchers may ask for. Its durable events are records of their own; step and evaluation reports come again from
  // the daemon of rank 0, in order, so the newest of them in this life of the coordinator tells what is new.
  History history;
  uint64_t last_sequence = 0;
  uint64_t reported_step = 0;
  uint64_t reported_eval = 0;
  std::map<WatchId, WatchPosition> waiting;  // watchers that have seen all there is

  // Reports that lie in the store (ReportPart), as no daemon keeps them any more: which parts, and up to which
  // sequence.
  std::set<uint64_t> stored_parts;
  uint64_t stored_sequence = 0;

  v1::JobState state() const { return record.job().state(); }
  // Whether the group forms: its ranks start, load and connect.
  bool forming() const { return state() == v1::JOB_STATE_PLACED || state() == v1::JOB_STATE_STARTING; }
  v1::Job& head() { return *record.mutable_job(); }
  const v1::Job& head() const { return record.job(); }
  Generation generation() const { return Generation(record.job().generation()); }
  uint32_t world_size() const { return record.job().spec().resources().ranks(); }
};

// The end of a rank 0 whose newest step reports are still on their way: not acknowledged before they are durable.
struct DelayedAck {
  uint64_t fact = 0;  // its sequence
  absl::Time until;   // then it is acknowledged without them
};

struct Host {
  HostName name;
  v1::HostRecord record;  // durable

  // Soft.
  SessionId session;  // value 0: not attached
  std::string peer;
  uint32_t slots = 0;
  uint32_t max_slots = 0;  // that it has told in this life of the coordinator
  v1::Inventory inventory;
  absl::Time last_contact = absl::InfinitePast();
  absl::Time attached_at = absl::InfinitePast();
  HeartbeatGaps gaps;
  absl::Duration lease;    // grows where its messages come unevenly
  bool reachable = false;  // as judged last; changes are told
  uint64_t applied_revision = 0;
  uint64_t applied_fact = 0;  // its facts up to here have been taken; `record.acked_fact` may stay behind
  std::map<JobId, DelayedAck> delayed_acks;
  bool draining = false;  // its daemon is about to leave
  std::string trouble;    // why it can run nothing now; empty: it can
  absl::Duration clock_offset;
  ArrivalTrend arrivals;
  uint64_t disk_free_bytes = 0;
  bool disk_full = false;                // that it is was told
  std::set<JobId> jobs;                  // jobs whose current generation has ranks here
  std::vector<v1::RunningTrainer> held;  // of jobs that are held; they are left alone
  std::vector<v1::TrainerKey> unknown;   // of jobs that are not known; they are left alone, too
  std::vector<v1::TrainerKey> strays;    // trainers of the past it still runs; they hold slots until they have exited
  // Strays of which nothing was heard: with this revision applied, and nothing heard by then, they never were started.
  std::vector<std::pair<v1::TrainerKey, uint64_t>> unstarted_strays;

  bool attached() const { return session.value() != 0; }
  Incarnation incarnation() const { return Incarnation(record.incarnation()); }
};

// One reader of output, and the requests it has at hosts.
struct LogReader {
  ReaderId id;
  v1::LogsRequest request;
  std::map<std::string, HostName> open;  // request id → host that pushes under it
  std::set<HostName> asked;              // hosts that have been asked in the current generation
  uint32_t next_request = 1;
  absl::Time close_at = absl::InfiniteFuture();  // the job has ended: lines on their way may still come until then
};

struct State {
  CoreOptions options;
  absl::Time started_at;
  absl::Duration away;  // of the steady time, so much has not passed for the core

  std::map<JobId, Job> jobs;
  std::map<uint64_t, JobId> by_submission;  // submit index → job
  uint64_t next_submit_index = 1;
  std::set<uint64_t> queue;           // submit indexes of jobs that wait for slots
  std::set<uint64_t> overdue;         // those of them that later jobs may no longer overtake
  std::set<JobId> active;             // jobs with HasTrainers(state)
  std::set<JobId> with_path_queries;  // jobs with path_queries
  absl::Time published_saved_at = absl::InfinitePast();
  std::deque<JobId> finished;  // oldest first
  std::set<JobId> unknown;     // jobs that hosts run and this coordinator does not know, as the cluster was told
  // Durable: jobs that were pushed out of the history, or ended although they were not known, oldest first. What runs
  // of one is a leftover, and not of a store that is newer than ours.
  std::map<uint64_t, JobId> forgotten;
  absl::flat_hash_set<JobId> forgotten_ids;

  std::map<HostName, Host> hosts;
  absl::flat_hash_map<SessionId, HostName> sessions;
  uint64_t session_changes = 0;                             // counts the streams that came and went
  absl::flat_hash_map<Incarnation, HostName> incarnations;  // current ones
  std::map<ReaderId, LogReader> readers;

  // Durable: hosts that came and went, states of jobs. CutReport by itself.
  History cluster{{.durable = limits::kClusterEvents, .first = 0, .reports = 0}};
  uint64_t cluster_sequence = 0;
  uint64_t durable_bytes = 0;        // of all jobs' durable events
  std::vector<std::string> orphans;  // keys the store held without a record they belong to
};

}  // namespace trainyard
