// A daemon's stream has opened: who it is, whether it may, and what it runs compared with what it should.
#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/version.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"
#include "coordinator/policy/health.h"

namespace trainyard {
namespace {

constexpr size_t kHostNameBytes = 253;    // as long as a DNS name may be
constexpr uint32_t kSlotsMax = 1'024;
constexpr int kPastIncarnations = 8;

bool IsHostName(absl::string_view name) {
  return !name.empty() && name.size() <= kHostNameBytes &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_'; });
}

absl::Status CheckHello(const v1::Hello& hello) {
  if (hello.protocol() != limits::kProtocol) {
    return absl::FailedPreconditionError(absl::StrCat("this daemon speaks protocol ", hello.protocol(),
                                                      ", the coordinator ", limits::kProtocol, "; install version ",
                                                      kVersion, " of trainyard on the host"));
  }
  if (!IsHostName(hello.host())) {
    return absl::InvalidArgumentError(absl::StrCat("host name '", hello.host().substr(0, 64),
                                                   "' must be 1 to 253 of letters, digits, '-', '.' and '_'"));
  }
  if (hello.incarnation() == 0) return absl::InvalidArgumentError("incarnation must not be 0");
  if (hello.slots() < 1 || hello.slots() > kSlotsMax) {
    return absl::InvalidArgumentError(absl::StrCat("slots is ", hello.slots(), ", must be 1 to ", kSlotsMax));
  }
  return absl::OkStatus();
}

// A daemon whose trainers belong to another cluster's jobs must not be told that nothing is desired: it would end them.
// It tries again until its own coordinator is back, or its trainers have ended.
absl::Status CheckCluster(const State& state, const v1::Hello& hello) {
  const std::string& ours = state.options.cluster_id;
  if (hello.cluster_id().empty() || hello.cluster_id() == ours || hello.trainers().empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "host ", hello.host(), " runs ", hello.trainers_size(), " trainers of cluster ", hello.cluster_id(), ", this is ",
      ours, "; start the coordinator on that cluster's --state, or end the trainers with trainyard-worker "
      "--stop-trainers"));
}

bool IsPast(const Host& host, uint64_t incarnation) {
  const auto& past = host.record.past_incarnations();
  return std::count(past.begin(), past.end(), incarnation) > 0;
}

// Whether this life of the daemon may take the name.
absl::Status CheckLife(const Turn& turn, const Host& host, const v1::Hello& hello) {
  if (host.record.incarnation() == hello.incarnation() || host.record.incarnation() == 0) return absl::OkStatus();
  if (IsPast(host, hello.incarnation())) {
    return absl::AbortedError(absl::StrCat("a newer daemon named ", hello.host(), " has attached; this one must exit"));
  }
  HostFacts facts{.attached = host.attached(), .last_heard = host.last_heard, .lease = turn.state.options.lease};
  if (host.attached() && JudgeHost(turn.now, facts).reachable) {
    return absl::AlreadyExistsError(absl::StrCat("another daemon named ", hello.host(), " is attached from ", host.peer,
                                                 " and alive; give this one another --name"));
  }
  return absl::OkStatus();
}

// Makes room where the table of hosts is full: those that are long gone and have no ranks.
absl::Status MakeRoom(State& state) {
  if (state.hosts.size() < limits::kHosts) return absl::OkStatus();
  for (auto it = state.hosts.begin(); it != state.hosts.end(); ++it) {
    if (it->second.attached() || it->second.reachable || !it->second.jobs.empty()) continue;
    state.incarnations.erase(it->second.incarnation());
    state.hosts.erase(it);
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(limits::kHosts, " hosts are attached, the limit"));
}

void TakeLife(Turn& turn, Host& host, const AttachHost& event) {
  uint64_t life = event.hello.incarnation();
  uint64_t before = host.record.incarnation();
  if (before != life) {
    if (before != 0) host.record.add_past_incarnations(before);
    auto* past = host.record.mutable_past_incarnations();
    if (past->size() > kPastIncarnations) past->erase(past->begin());
    turn.state.incarnations.erase(host.incarnation());
    host.record.set_incarnation(life);
    host.record.set_acked_fact(0);
  }
  turn.state.incarnations[host.incarnation()] = host.name;
  if (host.attached()) {
    turn.state.sessions.erase(host.session);
    turn.Emit(EndSession{host.session, absl::CancelledError("the same daemon has opened a newer stream")});
  }
  host.session = event.session;
  host.peer = event.peer;
  host.slots = event.hello.slots();
  host.inventory = event.hello.inventory();
  host.last_heard = turn.now;
  host.reachable = true;
  host.applied_revision = 0;
  host.record.set_revision(std::max(host.record.revision(), event.hello.applied_revision()));
  turn.state.sessions[event.session] = host.name;
  turn.Save(host);
}

void Welcome(Turn& turn, const Host& host) {
  SendToHost effect{host.session, {}};
  v1::Welcome& welcome = *effect.message.mutable_welcome();
  welcome.set_cluster_id(turn.state.options.cluster_id);
  welcome.set_incarnation(turn.state.options.incarnation.value());
  welcome.set_lease_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(turn.state.options.lease)));
  welcome.set_heartbeat_ms(
      static_cast<uint32_t>(absl::ToInt64Milliseconds(HeartbeatInterval(turn.state.options.lease))));
  welcome.set_acked_fact(host.record.acked_fact());
  turn.Emit(std::move(effect));
}

// A trainer that the host runs: one of a current generation is marked as running, any other holds a slot until it is
// gone.
void TakeTrainer(Turn& turn, Host& host, const v1::RunningTrainer& running) {
  auto it = turn.state.jobs.find(JobId(running.key().job_id()));
  bool current = it != turn.state.jobs.end() && host.jobs.contains(it->first) &&
                 it->second.head().generation() == running.key().generation() &&
                 running.key().rank() < it->second.ranks.size() &&
                 it->second.ranks[running.key().rank()].host() == host.name;
  if (!current) {
    host.strays.push_back(running.key());
    turn.Info(absl::StrCat("host ", host.name.value(), " runs rank ", running.key().rank(), " of generation ",
                           running.key().generation(), " of job ", running.key().job_id(),
                           ", which is not wanted any more; it is to be ended"));
    return;
  }
  Rank& rank = it->second.ranks[running.key().rank()];
  if (rank.exited()) return;
  rank.seen_running = true;
  rank.gone.clear();
  rank.record.set_started(true);
  rank.record.set_pid(running.pid());
  turn.SaveRank(it->second, rank.record.rank());
}

void Reconcile(Turn& turn, Host& host, const v1::Hello& hello) {
  host.strays.clear();
  std::set<std::tuple<std::string, uint32_t>> told;
  for (const v1::RunningTrainer& running : hello.trainers()) {
    TakeTrainer(turn, host, running);
    told.insert({running.key().job_id(), running.key().rank()});
  }
  for (const JobId& id : host.jobs) {
    Job& job = turn.state.jobs.at(id);
    for (uint32_t index : job.ranks_on[host.name]) {
      Rank& rank = job.ranks[index];
      bool missing = rank.record.started() && !rank.exited() && !told.contains({id.value(), index});
      rank.missing_since = missing ? turn.now : absl::InfiniteFuture();
      rank.removed_at_revision = 0;
    }
    bool was_unconfirmed = !job.unconfirmed.empty();
    job.unconfirmed.erase(host.name);
    if (was_unconfirmed && job.unconfirmed.empty()) {
      turn.Info(absl::StrCat("job ", id.value(), ": every host has attached again"));
      turn.PushAll(job);
    }
    turn.Touch(job);
  }
}

}  // namespace

void Run(Turn& turn, AttachHost& event) {
  State& state = turn.state;
  HostName name(event.hello.host());
  absl::Status status = CheckHello(event.hello);
  if (status.ok()) status = CheckCluster(state, event.hello);
  auto it = state.hosts.find(name);
  if (status.ok() && it != state.hosts.end()) status = CheckLife(turn, it->second, event.hello);
  if (status.ok() && it == state.hosts.end()) status = MakeRoom(state);
  if (!status.ok()) {
    turn.Warn(absl::StrCat("a daemon at ", event.peer, " was refused: ", std::string(status.message())));
    turn.Emit(EndSession{event.session, std::move(status)});
    return;
  }
  Host& host = it != state.hosts.end() ? it->second : state.hosts[name];
  host.name = name;
  TakeLife(turn, host, event);
  const std::string& cluster = event.hello.cluster_id();
  if (!cluster.empty() && cluster != state.options.cluster_id) {
    turn.Warn(absl::StrCat("host ", name.value(), " belonged to cluster ", cluster, " before; this is ",
                           state.options.cluster_id));
  }
  turn.Info(absl::StrCat("host ", name.value(), " attached from ", event.peer, ": ", host.slots, " slots, ",
                         host.inventory.cores(), " cores, ", event.hello.trainers_size(), " trainers run"));
  Welcome(turn, host);
  Reconcile(turn, host, event.hello);
  turn.Push(name);
  turn.ScheduleAll();
}

}  // namespace trainyard
