// N simulated hosts in this process, each with its own connection, on one event thread, and functions that wait for
// their milestones. Used by one thread of the bench.
//
//   Fleet fleet(address);
//   fleet.Add(64);
//   ASSIGN_OR_RETURN(absl::Time last, fleet.Await(Milestone::kAttached, 64));
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "bench/control/simulated_host.h"
#include "common/steady_cond_var.h"

namespace trainyard::bench {

class Fleet {
 public:
  explicit Fleet(std::string coordinator);
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // Adds hosts, which connect immediately: "h0000" and so on.
  void Add(size_t count);
  // Replaces the host by one with the same name and a new incarnation, which connects immediately.
  void Replace(size_t host);
  void Send(size_t host, SimulatedHost::Command command);
  void SendToAll(const SimulatedHost::Command& command);
  size_t size() const { return size_; }

  // Sets the counts of all milestones to 0.
  void Reset();
  // Waits until a milestone was reached `count` times since Reset; returns the time of the last. Possible errors:
  // DeadlineExceeded.
  absl::StatusOr<absl::Time> Await(Milestone milestone, uint64_t count, absl::Duration timeout = absl::Seconds(60));
  uint64_t Count(Milestone milestone) const;
  // Waits for this time; the hosts continue to run.
  void Idle(absl::Duration duration) const;

 private:
  struct Entry {
    size_t host;
    uint64_t incarnation;  // 0: the current one
    SimulatedHost::Item item;
  };
  struct Tally {
    uint64_t count = 0;
    absl::Time last;
  };

  struct Host {
    uint64_t incarnation = 0;
    std::unique_ptr<SimulatedHost> daemon;
    absl::Time wake = absl::InfiniteFuture();
  };

  void Post(Entry entry);
  void MakeHost(size_t host);
  void Run();
  void Handle(Entry entry);
  void HandleReplaced(const Entry& entry);
  void Reached(Milestone milestone, uint64_t count);

  const std::string coordinator_;
  size_t size_ = 0;  // used only by the thread of the bench

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  std::deque<Entry> queue_ ABSL_GUARDED_BY(mu_);
  bool ending_ ABSL_GUARDED_BY(mu_) = false;

  mutable absl::Mutex tally_mu_;
  mutable SteadyCondVar tally_changed_;
  std::array<Tally, kMilestones> tallies_ ABSL_GUARDED_BY(tally_mu_);

  // Used only by the event thread.
  uint64_t last_incarnation_ = 0;
  std::vector<Host> hosts_;
  std::map<uint64_t, std::unique_ptr<SimulatedHost>> replaced_;  // by incarnation, until its stream has ended
  std::set<std::pair<absl::Time, size_t>> timers_;
  std::thread thread_;
};

}  // namespace trainyard::bench
