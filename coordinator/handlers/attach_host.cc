// AttachHost: the stream of a daemon has opened. Checks whether the daemon may attach, and compares the trainers that
// it runs with those it should run.
#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/api_version.h"
#include "common/error_details.h"
#include "common/limits.h"
#include "common/plural.h"
#include "common/version.h"
#include "coordinator/core/records.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/avoid_hosts.h"
#include "coordinator/handlers/check_hello.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/hangs.h"
#include "coordinator/handlers/hold_jobs.h"
#include "coordinator/handlers/queue_facts.h"
#include "coordinator/handlers/trainer_facts.h"
#include "coordinator/handlers/value_store.h"
#include "coordinator/policy/health.h"

namespace trainyard {
namespace {

// The number of replaced daemon processes that are remembered per host, so that they are refused if they attach again.
constexpr int kPastIncarnations = 8;

// Removes a host that is unreachable and has no trainers, if the table of hosts is full.
absl::Status MakeSpaceForHost(Turn& turn) {
  State& state = turn.state;
  if (state.hosts.size() < limits::kHosts) return absl::OkStatus();
  for (auto it = state.hosts.begin(); it != state.hosts.end(); ++it) {
    const Host& host = it->second;
    const bool may_run_trainers = !host.jobs.empty() || !host.held.empty() || !host.unknown.empty();
    if (host.attached() || host.reachable || may_run_trainers || host.record.cordoned()) continue;
    state.incarnations.erase(host.incarnation());
    turn.Delete(HostKey(it->first));
    state.hosts.erase(it);
    return absl::OkStatus();
  }
  return AddReason(
      absl::ResourceExhaustedError(absl::StrCat("the coordinator knows ", limits::kHosts,
                                                " hosts, which is the limit; remove one (trainctl forget)")),
      reasons::kTooManyHosts);
}

// Facts are numbered per outbox; a daemon without an outbox id numbers them from 1 again in each process.
void UpdateOutbox(Host& host, const std::string& outbox_id, bool is_new_incarnation) {
  bool is_same_outbox = outbox_id == host.record.outbox_id() && (!outbox_id.empty() || !is_new_incarnation);
  host.delayed_acks.clear();  // the daemon sends unacknowledged facts again
  if (!is_same_outbox) host.record.set_acked_fact(0);
  host.record.set_outbox_id(outbox_id);
  host.applied_fact = host.record.acked_fact();
}

uint32_t CountLiveRanks(const State& state, const Host& host) {
  uint32_t count = 0;
  for (const JobId& id : host.jobs) {
    const Job& job = state.jobs.at(id);
    auto host_ranks = job.ranks_on.find(host.name);
    if (host_ranks == job.ranks_on.end()) continue;
    for (uint32_t rank : host_ranks->second) count += job.ranks[rank].ended() ? 0 : 1;
  }
  return count;
}

void UpdateHost(Turn& turn, Host& host, const AttachHost& event) {
  uint64_t incarnation = event.hello.incarnation();
  uint64_t previous = host.record.incarnation();
  if (previous != incarnation) {
    if (previous != 0) host.record.add_past_incarnations(previous);
    auto* past = host.record.mutable_past_incarnations();
    if (past->size() > kPastIncarnations) past->erase(past->begin());
    turn.state.incarnations.erase(host.incarnation());
    host.record.set_incarnation(incarnation);
  }
  UpdateOutbox(host, event.hello.outbox_id(), previous != incarnation);
  turn.state.incarnations[host.incarnation()] = host.name;
  if (host.attached()) {
    turn.state.sessions.erase(host.session);
    turn.Emit(EndSession{host.session, AddReason(absl::CancelledError("the same daemon has opened a newer stream"),
                                                 reasons::kDaemonReplaced)});
  }
  host.session = event.session;
  host.peer = event.peer;
  host.slots = event.hello.slots();
  host.max_slots = std::max({host.max_slots, host.slots, CountLiveRanks(turn.state, host)});
  host.attached_at = turn.now;
  host.inventory = event.hello.inventory();
  host.draining = false;
  host.disk_free_bytes = event.hello.inventory().disk_free_bytes();
  if (event.hello.time_unix_ms() != 0) {
    host.clock_offset = absl::FromUnixMillis(event.hello.time_unix_ms()) - turn.wall;
    host.arrivals.AddIfFast(turn.now, host.clock_offset);
  }
  host.last_contact = turn.now;
  host.reachable = true;
  host.applied_revision = 0;
  host.record.set_revision(std::max(host.record.revision(), event.hello.applied_revision()));
  turn.state.sessions[event.session] = host.name;
  ++turn.state.session_changes;
  turn.Save(host);
}

void Welcome(Turn& turn, const Host& host, uint32_t protocol) {
  SendToHost effect{host.session, {}};
  v1::Welcome& welcome = *effect.message.mutable_welcome();
  welcome.set_cluster_id(turn.state.options.cluster_id);
  welcome.set_incarnation(turn.state.options.incarnation.value());
  welcome.set_lease_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(turn.state.options.lease)));
  welcome.set_heartbeat_ms(
      static_cast<uint32_t>(absl::ToInt64Milliseconds(HeartbeatInterval(turn.state.options.lease))));
  welcome.set_protocol(std::min(protocol, limits::kProtocol));  // the newest that both support
  welcome.set_acked_fact(host.record.acked_fact());
  welcome.set_version(kVersion);
  turn.Emit(std::move(effect));
}

// Whether the trainer is of a generation that the store does not know: its number is above the recorded one, or this
// coordinator used the number again. Ranks keep their hosts as long as a generation lasts, so a rank of the recorded
// group cannot be on another host; a daemon that lists one is wrong, unless the store may be older than the generation.
bool IsUnknownGeneration(const Host& host, const Job& job, const v1::TrainerKey& key) {
  if (job.record.cancelled()) return false;  // every trainer of the job is to be ended
  if (key.generation() != job.head().generation()) return key.generation() > job.head().generation();
  if (!job.loaded_generation.has_value() || key.generation() <= *job.loaded_generation) return false;
  return key.rank() >= job.ranks.size() || job.ranks[key.rank()].host() != host.name;
}

// Records a trainer that the host runs: one of a current generation is marked as running; any other uses a slot until
// it has exited.
void AdoptTrainer(Turn& turn, Host& host, const v1::RunningTrainer& running, bool of_this_cluster) {
  auto it = turn.state.jobs.find(JobId(running.key().job_id()));
  if (it == turn.state.jobs.end() && of_this_cluster && IsUnknown(turn.state, running.key())) {
    return HoldUnknown(turn, host, running.key());
  }
  bool current = it != turn.state.jobs.end() && host.jobs.contains(it->first) && HasTrainers(it->second.state()) &&
                 it->second.head().generation() == running.key().generation() &&
                 running.key().rank() < it->second.ranks.size() &&
                 it->second.ranks[running.key().rank()].host() == host.name;
  if (it != turn.state.jobs.end() && !IsFinal(it->second.state()) &&
      IsUnknownGeneration(host, it->second, running.key())) {
    return HoldJob(turn, host, it->second, running);
  }
  if (!current) {
    host.strays.push_back(running.key());
    turn.Info(absl::StrCat("host ", host.name.value(), " runs rank ", running.key().rank(), " of generation ",
                           running.key().generation(), " of job ", running.key().job_id(),
                           ", which is no longer desired; it will be ended"));
    return;
  }
  Rank& rank = it->second.ranks[running.key().rank()];
  if (rank.exited()) return;
  rank.seen_running = true;
  rank.record.clear_gone();
  // A trainer without a process is being started, or waits for the check of its host or for the address of rank 0. It
  // does not count as started: if its daemon is replaced before there is a process, the next daemon starts it.
  if (running.pid() != 0 || running.ended()) {
    rank.record.set_started(true);
    rank.record.set_pid(running.pid());
  }
  if (running.pid() != 0) MarkCommandReady(it->second, rank);
  turn.SaveRank(it->second, rank.record.rank());
}

void Reconcile(Turn& turn, Host& host, const v1::Hello& hello, bool is_same_daemon) {
  host.strays.clear();
  host.unstarted_strays.clear();
  host.unknown.clear();
  const std::vector<v1::RunningTrainer> held = std::exchange(host.held, {});
  const bool of_this_cluster = hello.cluster_id() == turn.state.options.cluster_id;
  std::set<std::tuple<std::string, uint32_t>> reported;
  for (const v1::RunningTrainer& running : hello.trainers()) {
    AdoptTrainer(turn, host, running, of_this_cluster);
    auto it = turn.state.jobs.find(JobId(running.key().job_id()));
    bool current = it != turn.state.jobs.end() && it->second.head().generation() == running.key().generation();
    if (current) reported.insert({running.key().job_id(), running.key().rank()});
  }
  for (const JobId& id : host.jobs) {
    Job& job = turn.state.jobs.at(id);
    for (uint32_t index : job.ranks_on[host.name]) {
      Rank& rank = job.ranks[index];
      const bool is_listed = reported.contains({id.value(), index});
      bool missing = rank.record.started() && !rank.ended() && !is_listed;
      if (!rank.record.started() && !is_listed) rank.seen_running = false;
      rank.missing_since = missing ? turn.now : absl::InfiniteFuture();
      rank.was_removed = rank.was_removed || (!is_same_daemon && rank.removed_at_revision != 0);
      rank.removed_at_revision = 0;
      rank.dropped_at = absl::InfiniteFuture();  // the new daemon has not tried to end it yet
    }
    bool was_unconfirmed = !job.current.unconfirmed.empty();
    job.current.unconfirmed.erase(host.name);
    if (was_unconfirmed && job.current.unconfirmed.empty()) {
      turn.Decide(job, DecisionRule::kAdoption, NoticeLevel::kInfo,
                  "every host of the job has attached again; its ranks continue");
      turn.PushAll(job);
    }
    turn.Touch(job);
  }
  // A held job resumes if its trainers have ended meanwhile.
  for (const v1::RunningTrainer& before : held) {
    auto it = turn.state.jobs.find(JobId(before.key().job_id()));
    if (it != turn.state.jobs.end()) ResumeHeld(turn, it->second);
  }
  ForgetEndedUnknown(turn);
}

// A restarted daemon explains a gap in a job's reports, so the job gets a notice.
void PublishNewDaemon(Turn& turn, const Host& host) {
  for (const JobId& id : host.jobs) {
    Job& job = turn.state.jobs.at(id);
    if (!HasTrainers(job.state())) continue;
    std::vector<std::string> ranks;
    for (uint32_t index : job.ranks_on[host.name]) {
      if (ranks.size() == 8) {
        ranks.push_back("...");
        break;
      }
      const bool is_missing = job.ranks[index].missing_since != absl::InfiniteFuture();
      ranks.push_back(absl::StrCat(index, is_missing ? " (not found)" : ""));
    }
    turn.Decide(job, DecisionRule::kAdoption, NoticeLevel::kInfo,
                absl::StrCat("a new daemon of host ", host.name.value(), " adopted ",
                             ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", ")));
  }
}

// Returns a host of the job that has another version than this one; null: no attached host has.
const Host* HostOfOtherVersion(const State& state, const Job& job, const Host& host) {
  for (const auto& [name, ranks] : job.ranks_on) {
    const auto other = state.hosts.find(name);
    if (other == state.hosts.end() || !other->second.attached()) continue;
    if (other->second.inventory.version() != host.inventory.version()) return &other->second;
  }
  return nullptr;
}

// A daemon may be replaced by one of another version after a job was placed. If ranks are not started on its host yet,
// they would be of another version than the rest of the group, so the group is ended and formed again.
void EndMixedGroups(Turn& turn, const Host& host) {
  const std::set<JobId> jobs = host.jobs;
  for (const JobId& id : jobs) {
    Job& job = turn.state.jobs.at(id);
    const auto here = job.ranks_on.find(host.name);
    if (!job.forming() || job.held_at != 0 || job.record.has_failure() || !NeedsOneVersion(job)) continue;
    if (here == job.ranks_on.end()) continue;
    const bool starts_ranks = std::any_of(here->second.begin(), here->second.end(), [&](uint32_t index) {
      const Rank& rank = job.ranks[index];
      return !rank.record.started() && !rank.seen_running && !rank.ended();
    });
    const Host* other = starts_ranks ? HostOfOtherVersion(turn.state, job, host) : nullptr;
    if (other == nullptr) continue;
    EndGroup(
        turn, job, v1::JobRecord::ENDING_RESTART,
        absl::StrCat("host ", host.name.value(), " came back with ", VersionName(host.inventory.version()),
                     " of Trainyard, and host ", other->name.value(), " has ", VersionName(other->inventory.version()),
                     "; the group is formed again on hosts of one version"),
        /*now=*/true, DecisionRule::kPlacement);
  }
}

// Called once for each daemon process, whose own log has the same warning.
void WarnOfVersion(Turn& turn, const Host& host) {
  const std::string& version = host.inventory.version();
  if (version.empty() || IsSameRelease(version, kVersion)) return;
  turn.Warn(absl::StrCat("the daemon of host ", host.name.value(), " has ", VersionName(version),
                         " and this coordinator version ", kVersion,
                         "; they work together, but install the same version on all hosts when you can"));
}

}  // namespace

void Run(Turn& turn, AttachHost& event) {
  State& state = turn.state;
  HostName name(event.hello.host());
  absl::Status status = CheckHello(turn, event.hello);
  auto it = state.hosts.find(name);
  if (status.ok() && it == state.hosts.end()) status = MakeSpaceForHost(turn);
  if (!status.ok()) {
    turn.Warn(absl::StrCat("a daemon at ", event.peer, " was refused: ", std::string(status.message())));
    turn.Emit(EndSession{event.session, std::move(status)});
    return;
  }
  Host& host = it != state.hosts.end() ? it->second : state.hosts[name];
  host.name = name;
  bool is_same_daemon = host.record.incarnation() == event.hello.incarnation();
  bool was_reachable = host.reachable;
  UpdateHost(turn, host, event);
  const std::string& cluster = event.hello.cluster_id();
  if (!cluster.empty() && cluster != state.options.cluster_id) {
    turn.Warn(absl::StrCat("host ", name.value(), " belonged to cluster ", cluster, " before; this cluster is ",
                           state.options.cluster_id));
  }
  std::string text = absl::StrCat("host ", name.value(), " attached from ", event.peer, ": ",
                                  Plural(host.slots, "slot"), ", ", Plural(host.inventory.cores(), "core"), ", ",
                                  Plural(event.hello.trainers_size(), "trainer runs", "trainers run"));
  // A daemon that reconnects, also to a new coordinator, causes no event: a thousand daemons would cause too many.
  if (is_same_daemon && was_reachable) {
    turn.Info(std::move(text));
  } else {
    turn.DecideCluster(name, DecisionRule::kNone, NoticeLevel::kInfo, std::move(text));
  }
  Welcome(turn, host, event.hello.protocol());
  Reconcile(turn, host, event.hello, is_same_daemon);
  if (!is_same_daemon) {
    PublishNewDaemon(turn, host);
    WarnOfVersion(turn, host);
    for (auto& [id, job] : state.jobs) StopAvoiding(turn, job, name);
  }
  EndMixedGroups(turn, host);
  for (const JobId& id : host.jobs) RestartStallTimer(turn, state.jobs.at(id));
  SendStoredValues(turn, host);
  turn.Push(name);
  turn.ScheduleAll();
}

}  // namespace trainyard
