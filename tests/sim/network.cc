#include "tests/sim/network.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace trainyard::sim {
namespace {

// The time after which TCP resends a lost packet; it doubles each time the packet is lost again.
constexpr absl::Duration kFirstResend = absl::Milliseconds(200);
// The longest delay that packet loss adds to a control message. It exceeds every lease that the coordinator has not
// lengthened because of late messages, so that a host under packet loss may be silent for longer than its lease.
constexpr absl::Duration kMaxControlDelay = absl::Seconds(8);

}  // namespace

absl::Duration Network::ResendDelay(const Machine& machine, absl::Duration max_delay) {
  absl::Duration late;
  if (machine.packet_loss() <= 0) return late;
  for (absl::Duration wait = kFirstResend; late < max_delay && world_.random.Chance(machine.packet_loss()); wait *= 2)
    late += wait;
  return std::min(late, max_delay);
}

absl::Time Network::LastContact(const std::string& host) const {
  auto at = last_contacts_.find(host);
  return at == last_contacts_.end() ? absl::InfinitePast() : at->second;
}

absl::Duration Network::Delay() {
  Random& random = world_.random;
  // Mostly the delay of a local network, occasionally a longer one.
  return random.Chance(0.97) ? random.Between(absl::Microseconds(100), absl::Milliseconds(2))
                             : random.Between(absl::Milliseconds(2), absl::Milliseconds(300));
}

bool Network::Blocked(const Stream& stream) const {
  return stream.silent || stream.machine->control_cut() || world_.coordinator.paused();
}

void Network::Dial(Machine& machine, const v1::Hello& hello) {
  const uint64_t incarnation = machine.daemon().incarnation();
  auto refuse = [&](absl::Duration wait) {
    world_.engine.After(wait, [&machine, incarnation] {
      machine.daemon().Post(incarnation, agent::SessionEnded{absl::UnavailableError("no connection")});
    });
  };
  if (machine.control_cut()) return refuse(world_.random.Between(absl::Seconds(1), absl::Seconds(3)));
  if (!world_.coordinator.alive()) return refuse(Delay());

  auto stream = std::make_shared<Stream>();
  stream->session = world_.coordinator.NewSession();
  stream->machine = &machine;
  stream->daemon_incarnation = incarnation;
  stream->coordinator_incarnation = world_.coordinator.incarnation();
  std::weak_ptr<Stream> weak = stream;
  auto blocked = [this, weak] {
    auto self = weak.lock();
    return self != nullptr && Blocked(*self);
  };
  stream->up = std::make_shared<Channel>(world_.engine, blocked);
  stream->down = std::make_shared<Channel>(world_.engine, blocked);
  streams_[stream->session] = stream;
  current_[&machine] = stream;
  std::erase_if(all_streams_, [](const StreamPtr& old) { return old->over_at_daemon && old->over_at_coordinator; });
  all_streams_.push_back(stream);
  v1::AgentMessage message;
  *message.mutable_hello() = hello;
  SendToCoordinator(machine, std::move(message));
}

void Network::SendToCoordinator(Machine& machine, v1::AgentMessage message) {
  StreamPtr stream = current_[&machine];
  if (stream == nullptr || stream->over_at_daemon) return;
  auto shared = std::make_shared<v1::AgentMessage>(std::move(message));
  stream->up->Send(Delay() + ResendDelay(machine, kMaxControlDelay),
                   [this, stream, shared] { Arrive(stream, std::move(*shared)); });
}

void Network::Arrive(const StreamPtr& stream, v1::AgentMessage message) {
  if (stream->over_at_coordinator) return;
  CoordinatorProcess& coordinator = world_.coordinator;
  const uint64_t incarnation = stream->coordinator_incarnation;
  coordinator.RecordContact(incarnation, stream->session);
  // A message of a stream that the daemon has given up does not show that the daemon is in contact now. A hello
  // does not show it either: the coordinator attaches the host only later, when it takes the hello from its queue of
  // events.
  if (!stream->over_at_daemon && !message.has_hello()) last_contacts_[stream->machine->name()] = world_.engine.now();
  switch (message.kind_case()) {
    case v1::AgentMessage::kHello:
      return coordinator.Post(incarnation, AttachHost{stream->session, std::move(*message.mutable_hello()), "sim"});
    case v1::AgentMessage::kFacts:
      if (world_.mutation == Mutation::kForgeExit) world_.ForgeExit(*message.mutable_facts());
      if (world_.mutation == Mutation::kForgeReady) world_.ForgeReady(*message.mutable_facts());
      return coordinator.Post(incarnation, HostFactsReceived{stream->session, std::move(*message.mutable_facts())});
    case v1::AgentMessage::kReports:
      if (world_.mutation == Mutation::kForgeReports) world_.ForgeReports(*message.mutable_reports());
      return coordinator.Post(incarnation, RankReportsReceived{stream->session, std::move(*message.mutable_reports())});
    case v1::AgentMessage::kPut:
      return coordinator.Post(incarnation, HostValuesReceived{stream->session, std::move(*message.mutable_put())});
    case v1::AgentMessage::kHeartbeat:
      return HandleHeartbeat(stream, message.heartbeat());
    default:
      return;
  }
}

// Only changes become events, as in rpc/attach_stream.
void Network::HandleHeartbeat(const StreamPtr& stream, const v1::Heartbeat& beat) {
  if (beat.draining() != stream->draining) {
    stream->draining = beat.draining();
    world_.coordinator.Post(stream->coordinator_incarnation, HostDraining{stream->session, beat.draining()});
  }
  if (beat.trouble() != stream->trouble) {
    stream->trouble = beat.trouble();
    world_.coordinator.Post(stream->coordinator_incarnation, HostTrouble{stream->session, beat.trouble()});
  }
  if (beat.applied_revision() == stream->applied_revision) return;
  stream->applied_revision = beat.applied_revision();
  world_.coordinator.Post(stream->coordinator_incarnation, RevisionApplied{stream->session, beat.applied_revision()});
}

void Network::SendToDaemon(SessionId session, v1::CoordinatorMessage message) {
  auto at = streams_.find(session);
  if (at == streams_.end() || at->second->over_at_coordinator) return;
  StreamPtr stream = at->second;
  if (world_.mutation == Mutation::kLoseDesired && message.has_desired() && stream->machine->name() == "w0") return;
  if (world_.mutation == Mutation::kLoseAcks) {
    if (message.has_ack()) return;
    if (message.has_welcome()) message.mutable_welcome()->clear_acked_fact();
  }
  auto shared = std::make_shared<v1::CoordinatorMessage>(std::move(message));
  stream->down->Send(Delay() + ResendDelay(*stream->machine, kMaxControlDelay), [stream, shared] {
    if (stream->over_at_daemon) return;
    DaemonProcess& daemon = stream->machine->daemon();
    if (shared->has_welcome())
      daemon.Post(stream->daemon_incarnation, agent::Welcomed{std::move(*shared->mutable_welcome())});
    if (shared->has_desired()) {
      daemon.Post(stream->daemon_incarnation, agent::DesiredStateReceived{std::move(*shared->mutable_desired())});
    }
    if (shared->has_values()) daemon.TakeValues(stream->daemon_incarnation, shared->values());
    if (shared->has_ack()) daemon.Post(stream->daemon_incarnation, agent::FactsAcknowledged{shared->ack().sequence()});
  });
}

void Network::EndByCoordinator(SessionId session, const absl::Status& status) {
  auto at = streams_.find(session);
  if (at == streams_.end()) return;
  StreamPtr stream = at->second;
  stream->down->Send(Delay(), [this, stream, status] { EndAtDaemon(stream, status); });
  world_.engine.After(Delay(), [this, stream] { EndAtCoordinator(stream); });
}

void Network::EndAtDaemon(const StreamPtr& stream, const absl::Status& status) {
  if (std::exchange(stream->over_at_daemon, true)) return;
  world_.judge.Trace(
      absl::StrCat(stream->machine->name(), ": its stream ", stream->session.value(), " ends: ", status.ToString()));
  // Messages that were sent before are still on their way, and so is the notification of the end.
  stream->up->Send(Delay(), [this, stream] { EndAtCoordinator(stream); });
  // The messages that a half-open stream has held back are sometimes delivered after its end.
  if (stream->silent && world_.random.Chance(0.7)) {
    stream->silent = false;
    stream->up->Pump();
  }
  stream->machine->daemon().Post(stream->daemon_incarnation, agent::SessionEnded{status});
}

void Network::EndAtCoordinator(const StreamPtr& stream) {
  if (std::exchange(stream->over_at_coordinator, true)) return;
  world_.coordinator.Post(stream->coordinator_incarnation, DetachHost{stream->session});
  stream->down->Send(Delay(), [this, stream] { EndAtDaemon(stream, absl::UnavailableError("the stream was ended")); });
  streams_.erase(stream->session);
}

void Network::HangUp(Machine& machine, const std::string& reason) {
  StreamPtr stream = current_[&machine];
  const uint64_t incarnation = machine.daemon().incarnation();
  if (stream == nullptr || stream->over_at_daemon || stream->daemon_incarnation != incarnation)
    return;  // the dial in progress fails by itself
  world_.engine.After(absl::Milliseconds(1),
                      [this, stream, reason] { EndAtDaemon(stream, absl::CancelledError(reason)); });
}

void Network::DaemonDied(Machine& machine) {
  StreamPtr stream = std::exchange(current_[&machine], nullptr);
  if (stream != nullptr) EndAtDaemon(stream, absl::UnavailableError("the daemon has exited"));
}

void Network::CoordinatorDied() {
  for (auto& [session, stream] : std::exchange(streams_, {})) {
    stream->over_at_coordinator = true;
    stream->down->Send(Delay(), [this, stream = stream] {
      EndAtDaemon(stream, absl::UnavailableError("connection reset by the coordinator's host"));
    });
  }
}

void Network::Drop(Machine& machine) {
  StreamPtr stream = current_[&machine];
  if (stream != nullptr) EndAtDaemon(stream, absl::UnavailableError("connection reset"));
}

void Network::GiveUpLater(const StreamPtr& stream) {
  Random& random = world_.random;
  world_.engine.After(random.Between(absl::Seconds(2), absl::Seconds(12)), [this, stream] {
    if (Blocked(*stream)) EndAtDaemon(stream, absl::UnavailableError("keepalive watchdog timeout"));
  });
  world_.engine.After(random.Between(absl::Seconds(4), absl::Seconds(40)), [this, stream] {
    if (Blocked(*stream)) EndAtCoordinator(stream);
  });
}

void Network::Silence(Machine& machine) {
  StreamPtr stream = current_[&machine];
  if (stream == nullptr || stream->over_at_daemon) return;
  stream->silent = true;
  GiveUpLater(stream);
}

void Network::Cut(Machine& machine) {
  StreamPtr stream = current_[&machine];
  if (stream != nullptr && !stream->over_at_daemon) GiveUpLater(stream);
}

void Network::PumpAll() {
  std::vector<StreamPtr> streams = all_streams_;
  for (const StreamPtr& stream : streams) {
    stream->up->Pump();
    stream->down->Pump();
  }
}

Network::~Network() {
  // Undelivered messages own their stream, which owns the channels that hold them: emptying the channels breaks the
  // cycle.
  for (const StreamPtr& stream : all_streams_) {
    stream->up->Clear();
    stream->down->Clear();
  }
}

}  // namespace trainyard::sim
