#include "bench/control/fleet.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace trainyard::bench {
namespace {

const char* NameOf(Milestone milestone) {
  constexpr const char* kNames[kMilestones] = {"attached hosts",   "trainers with go", "aborted trainers",
                                               "durable exits",    "durable facts",    "ended streams",
                                               "daemons that left"};
  return kNames[static_cast<size_t>(milestone)];
}

}  // namespace

Fleet::Fleet(std::string coordinator) : coordinator_(std::move(coordinator)), thread_([this] { Run(); }) {}

Fleet::~Fleet() {
  {
    absl::MutexLock lock(&mu_);
    ending_ = true;
  }
  changed_.SignalAll();
  thread_.join();
  for (Host& host : hosts_) {
    if (host.daemon != nullptr) host.daemon->HangUp();
  }
  for (auto& [incarnation, daemon] : replaced_) daemon->HangUp();
}

void Fleet::Add(size_t count) {
  for (size_t i = 0; i < count; ++i) Replace(size_++);
}

void Fleet::Replace(size_t host) {
  Post({host, 0, SimulatedHost::Command()});  // an empty command creates the host
}

void Fleet::Send(size_t host, SimulatedHost::Command command) { Post({host, 0, std::move(command)}); }

void Fleet::SendToAll(const SimulatedHost::Command& command) {
  for (size_t i = 0; i < size_; ++i) Send(i, command);
}

void Fleet::Reset() {
  absl::MutexLock lock(&tally_mu_);
  tallies_.fill(Tally());
}

absl::StatusOr<absl::Time> Fleet::Await(Milestone milestone, uint64_t count, absl::Duration timeout) {
  absl::MutexLock lock(&tally_mu_);
  const Tally& tally = tallies_[static_cast<size_t>(milestone)];
  auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tally_mu_) { return tally.count >= count; };
  if (tally_changed_.AwaitFor(&tally_mu_, timeout, reached)) return tally.last;
  return absl::DeadlineExceededError(absl::StrCat("waited ", absl::FormatDuration(timeout), " for ", count, " ",
                                                  NameOf(milestone), "; reached ", tally.count));
}

uint64_t Fleet::Count(Milestone milestone) const {
  absl::MutexLock lock(&tally_mu_);
  return tallies_[static_cast<size_t>(milestone)].count;
}

void Fleet::Idle(absl::Duration duration) const {
  absl::MutexLock lock(&tally_mu_);
  tally_changed_.AwaitFor(&tally_mu_, duration, [] { return false; });
}

void Fleet::Post(Entry entry) {
  absl::MutexLock lock(&mu_);
  queue_.push_back(std::move(entry));
  changed_.SignalAll();
}

void Fleet::Reached(Milestone milestone, uint64_t count) {
  absl::MutexLock lock(&tally_mu_);
  Tally& tally = tallies_[static_cast<size_t>(milestone)];
  tally.count += count;
  tally.last = absl::Now();
  tally_changed_.SignalAll();
}

// Runs on the event thread.
void Fleet::Run() {
  while (true) {
    std::deque<Entry> batch;
    {
      absl::MutexLock lock(&mu_);
      absl::Time deadline = timers_.empty() ? absl::InfiniteFuture() : timers_.begin()->first;
      auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !queue_.empty() || ending_; };
      changed_.AwaitFor(&mu_, deadline - absl::Now(), ready);
      if (ending_) return;
      batch.swap(queue_);
    }
    for (Entry& entry : batch) Handle(std::move(entry));
    absl::Time now = absl::Now();
    while (!timers_.empty() && timers_.begin()->first <= now) {
      Handle({timers_.begin()->second, 0, agent::Event(agent::Tick{})});
    }
  }
}

void Fleet::Handle(Entry entry) {
  auto* command = std::get_if<SimulatedHost::Command>(&entry.item);
  if (command != nullptr && *command == nullptr) {
    MakeHost(entry.host);
    entry.item = agent::Event(agent::AllFound{});
  }
  Host& host = hosts_[entry.host];
  if (entry.incarnation != 0 && entry.incarnation != host.incarnation) return HandleReplaced(entry);
  if (host.daemon == nullptr) return;  // it has left and has not been replaced yet
  host.daemon->Handle(std::move(entry.item), absl::Now());
  // This also closes the host's connection: a thousand open connections of former hosts would distort the measurement.
  if (host.daemon->over()) host.daemon = nullptr;
  absl::Time next = host.daemon == nullptr ? absl::InfiniteFuture() : host.daemon->next_wake();
  if (next == host.wake) return;
  timers_.erase({host.wake, entry.host});
  host.wake = next;
  if (next != absl::InfiniteFuture()) timers_.insert({next, entry.host});
}

void Fleet::HandleReplaced(const Entry& entry) {
  const auto* event = std::get_if<agent::Event>(&entry.item);
  if (event == nullptr || !std::holds_alternative<agent::SessionEnded>(*event)) return;
  Reached(Milestone::kStreamEnded, 1);
  replaced_.erase(entry.incarnation);
}

void Fleet::MakeHost(size_t host) {
  if (host >= hosts_.size()) hosts_.resize(host + 1);
  Host& at = hosts_[host];
  timers_.erase({at.wake, host});
  at.wake = absl::InfiniteFuture();
  if (at.daemon != nullptr) replaced_[at.incarnation] = std::move(at.daemon);
  uint64_t incarnation = at.incarnation = ++last_incarnation_;
  at.daemon = std::make_unique<SimulatedHost>(SimulatedHost::Options{
      .coordinator = coordinator_,
      .name = absl::StrFormat("h%04d", host),
      .incarnation = incarnation,
      .post =
          [this, host, incarnation](SimulatedHost::Item item) {
            Post({host, incarnation, std::move(item)});
          },
      .reached = [this](Milestone milestone, uint64_t count) { Reached(milestone, count); },
  });
}

}  // namespace trainyard::bench
