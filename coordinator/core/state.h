// Everything the core knows: one struct, changed by the functions of ops/ alone, on one thread. What is durable is said
// at each part; the rest is soft and comes back by itself when daemons re-attach and clients ask again.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"
#include "trainyard/v1/store.pb.h"

namespace trainyard {

struct CoreOptions {
  std::string cluster_id;
  Incarnation incarnation;        // of this life of the coordinator
  absl::Duration lease = absl::Seconds(3);
  uint32_t finished_jobs = 1000;  // kept
};

// One rank of a job's current generation. `record` is durable.
struct Rank {
  v1::RankRecord record;
  uint32_t local_rank = 0;
  uint32_t local_world_size = 0;

  // Soft.
  std::string phase = "starting";
  uint64_t last_step = 0;
  absl::Time last_report = absl::InfinitePast();
  bool seen_running = false;      // told by `started` or by its host's Hello in this life of the coordinator
  bool broke = false;             // told that a collective broke
  absl::Time missing_since = absl::InfiniteFuture();  // its host attached without it and has not told its exit
  uint64_t removed_at_revision = 0;  // the desired state that first lacked it; 0: still desired, or host away
  std::string gone;               // why it counts as ended although no exit was told; empty: it does not

  bool exited() const { return record.has_exit(); }
  HostName host() const { return HostName(record.host()); }
};

// The write-once values that a generation's collectives meet through. Soft: daemons put theirs again after
// re-attaching.
struct ValueStore {
  std::map<std::string, ValuePtr> values;
  size_t bytes = 0;
  bool sealed = false;
  std::map<WatchId, Incarnation> watchers;
  WatchList watcher_list;  // of `watchers`; null: not made since they changed
};

struct Job {
  JobId id;

  // Durable (JobRecord). `record.job` has no ranks; they are below.
  v1::JobRecord record;
  std::vector<Rank> ranks;
  std::map<HostName, std::vector<uint32_t>> ranks_on;  // an index of `ranks`

  // Durable, late (ToldRecord): how far watchers were told.
  v1::ToldRecord told;
  bool told_changed = false;

  // Soft: the current generation.
  bool nothing_desired = true;     // its trainers are not in any desired state
  bool stop = false;               // stop at the next step, as cancelled
  absl::Time drop_at = absl::InfiniteFuture();      // when desired trainers are dropped (grace of a stop or of a cause)
  absl::Time progress_at = absl::InfinitePast();    // last progress in forming the group
  absl::Time restart_at = absl::InfinitePast();     // not placed again before
  absl::Time reports_until = absl::InfiniteFuture();  // waits for step reports that are on their way
  double longest_s = 0;            // step, evaluation or save seen: a stop must be given that time
  ValueStore store;
  std::set<HostName> unconfirmed;  // hosts of a job found in the store that have not attached yet

  // Soft: over generations.
  uint32_t failures_without_progress = 0;
  uint64_t step_at_last_failure = 0;

  // Soft: what watchers may ask for, oldest first. Sequences rise.
  std::deque<EventPtr> history;
  uint64_t last_sequence = 0;
  absl::flat_hash_map<WatchId, uint64_t> waiting;  // watchers that wait for more than this sequence

  v1::JobState state() const { return record.job().state(); }
  v1::Job& head() { return *record.mutable_job(); }
  const v1::Job& head() const { return record.job(); }
  Generation generation() const { return Generation(record.job().generation()); }
  uint32_t world_size() const { return record.job().spec().resources().ranks(); }
};

struct Host {
  HostName name;
  v1::HostRecord record;  // durable

  // Soft.
  SessionId session;      // value 0: not attached
  std::string peer;
  uint32_t slots = 0;
  v1::Inventory inventory;
  absl::Time last_heard = absl::InfinitePast();
  bool reachable = false;  // as judged last; changes are told
  uint64_t applied_revision = 0;
  std::set<JobId> jobs;    // jobs whose current generation has ranks here
  std::vector<v1::TrainerKey> strays;  // trainers of the past it still runs; they hold slots until they have exited

  bool attached() const { return session.value() != 0; }
  Incarnation incarnation() const { return Incarnation(record.incarnation()); }
};

// One reader of output, and the requests it has at hosts.
struct LogReader {
  ReaderId id;
  v1::LogsRequest request;
  std::map<std::string, HostName> open;   // request id → host that pushes under it
  std::set<HostName> asked;               // hosts that have been asked in the current generation
  uint32_t next_request = 1;
  absl::Time close_at = absl::InfiniteFuture();  // the job has ended: lines on their way may still come until then
};

struct State {
  CoreOptions options;
  absl::Time started_at;

  std::map<JobId, Job> jobs;
  std::map<uint64_t, JobId> by_submission;  // submit index → job
  uint64_t next_submit_index = 1;
  std::set<uint64_t> queue;                 // submit indexes of jobs that wait for slots
  std::set<JobId> active;                   // jobs with HasTrainers(state)
  absl::Time told_saved_at = absl::InfinitePast();
  std::deque<JobId> finished;               // oldest first

  std::map<HostName, Host> hosts;
  absl::flat_hash_map<SessionId, HostName> sessions;
  absl::flat_hash_map<Incarnation, HostName> incarnations;  // current ones
  std::map<ReaderId, LogReader> readers;
};

}  // namespace trainyard
