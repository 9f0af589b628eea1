// N simulated hosts in this process, each with a connection of its own, on one event thread, and what the bench waits
// for. Thread-safe for the one thread of the bench.
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

  // More hosts, which dial at once: "h0000" and on.
  void Add(size_t count);
  // The host leaves, and one of the same name but another life takes its place and dials.
  void Replace(size_t host);
  void Tell(size_t host, SimulatedHost::Command command);
  void TellAll(const SimulatedHost::Command& command);
  size_t size() const { return size_; }

  // Counts from here on.
  void Reset();
  // Until a milestone was reached `count` times since Reset; returns when that was. Possible errors: DeadlineExceeded.
  absl::StatusOr<absl::Time> Await(Milestone milestone, uint64_t count, absl::Duration patience = absl::Seconds(60));
  uint64_t Count(Milestone milestone) const;
  // Lets time pass.
  void Idle(absl::Duration duration) const;

 private:
  struct Entry {
    size_t host;
    uint64_t life;  // 0: of whoever is there
    SimulatedHost::Item item;
  };
  struct Tally {
    uint64_t count = 0;
    absl::Time last;
  };

  struct Host {
    uint64_t life = 0;
    std::unique_ptr<SimulatedHost> daemon;
    absl::Time wake = absl::InfiniteFuture();
  };

  void Post(Entry entry);
  void MakeHost(size_t host);
  void Run();
  void Handle(Entry entry);
  void EndFormer(const Entry& entry);
  void Reached(Milestone milestone, uint64_t count);

  const std::string coordinator_;
  size_t size_ = 0;  // the bench's thread's own

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  std::deque<Entry> queue_ ABSL_GUARDED_BY(mu_);
  bool ending_ ABSL_GUARDED_BY(mu_) = false;

  mutable absl::Mutex tally_mu_;
  mutable SteadyCondVar tally_changed_;
  std::array<Tally, kMilestones> tallies_ ABSL_GUARDED_BY(tally_mu_);

  // The event thread's own.
  uint64_t lives_ = 0;
  std::vector<Host> hosts_;
  std::map<uint64_t, std::unique_ptr<SimulatedHost>> former_;  // by life, until their stream has ended
  std::set<std::pair<absl::Time, size_t>> timers_;
  std::thread thread_;
};

}  // namespace trainyard::bench
