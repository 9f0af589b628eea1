// One simulated host: the worker daemon's production core and session on top of simulated processes and files. Its
// trainers start immediately, exchange one value each, become ready, and then follow the commands of the bench.
//
// Everything except the session's own threads runs on the fleet's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "worker/agent/core.h"
#include "worker/agent/session.h"

namespace trainyard::bench {

// What a host reports to the fleet, so that the bench can wait for it.
enum class Milestone {
  kAttached,        // welcomed by the coordinator
  kGoReceived,      // a trainer has received `go`, the permission to begin its first step
  kTrainerAborted,  // a trainer that is no longer desired has received an abort request, or was killed
  kExitDurable,     // a trainer's exit is durable at the coordinator
  kFactDurable,     // a fact of a flood is durable
  kStreamEnded,     // the stream has ended
  kDaemonLeft,      // the daemon has left the cluster, as the coordinator or the bench requested
};
constexpr size_t kMilestones = 7;

class SimulatedHost {
 public:
  using Command = std::function<void(SimulatedHost&)>;
  // `count` more values of `group` have arrived.
  struct ValuesArrived {
    agent::GroupId group;
    uint32_t count;
  };
  using Item = std::variant<agent::Event, ValuesArrived, Command>;

  struct Options {
    std::string coordinator;
    std::string name;
    uint64_t incarnation = 1;
    // Adds an item for this host to the fleet's queue; can be called on any thread.
    std::function<void(Item)> post;
    // Called on the fleet's thread when the milestone was reached `count` more times.
    std::function<void(Milestone, uint64_t count)> reached;
  };

  explicit SimulatedHost(Options options);
  ~SimulatedHost();
  SimulatedHost(const SimulatedHost&) = delete;
  SimulatedHost& operator=(const SimulatedHost&) = delete;

  void Handle(Item item, absl::Time now);
  absl::Time next_wake() const;

  // Commands of the bench.
  //
  // Every trainer finishes its one step and exits with 0.
  void FinishTrainers();
  // Kills the trainer with signal 9, as the kernel does when memory runs out.
  void KillTrainer();
  // Keeps `window` facts in flight from now on; 0 stops that.
  void Flood(uint64_t window);
  void LeaveCluster() { PassToCore(agent::LeaveRequested{agent::Leaving::kKeepTrainers}); }
  // Begins to stop the session, so that hosts stop concurrently at the end of the bench.
  void HangUp() { session_.HangUp("the bench ends"); }

  // Returns whether the host has left the cluster and its stream has ended.
  bool over() const { return over_; }

 private:
  struct Trainer {
    v1::DesiredTrainer desired;
    std::string token;
    agent::LinkId link;
    uint64_t last_fact = 0;
    uint64_t acknowledged = 0;
    absl::Time exits_at = absl::InfiniteFuture();  // set by an abort request: exiting takes time, as in real processes
    uint32_t values = 0;                           // the number of values of its group that have arrived
    bool ended = false;
  };

  // Passes the event, and those that were enqueued before it, to the core and carries out their effects.
  void PassToCore(agent::Event event);
  void Enqueue(agent::Event event) { pending_events_.push_back(std::move(event)); }
  Trainer* Find(agent::LinkId link);
  void ReportFact(Trainer& trainer, v1::Fact fact);
  void PutValue(const Trainer& trainer);
  void CountValues(const ValuesArrived& arrived);
  void EndTrainer(const agent::TrainerId& id, Trainer& trainer, v1::TrainerExited exited);
  void ContinueFlood(Trainer& trainer);
  void EndAborted();

  void Do(agent::Dial& effect) { session_.Dial(effect.hello); }
  void Do(agent::HangUp& effect) { session_.HangUp(effect.reason); }
  void Do(agent::SendToCoordinator& effect) { session_.Send(std::move(effect.message)); }
  // The bench does not measure the host's disk, so the next event reports that the facts are stored.
  void Do(agent::StoreFacts&) { options_.post(agent::Event(agent::FactsStored{absl::OkStatus()})); }
  void Do(agent::StartProcess& effect);
  void Do(agent::SendLinkMessage& effect);
  void Do(agent::CloseLink& effect);
  void Do(agent::SignalProcess& effect);
  void Do(agent::MarkReported& effect);
  void Do(agent::Leave& effect);
  // Effects that are not measured: log lines, the watch of output, files.
  template <typename T>
  void Do(T&) {}

  const Options options_;
  agent::Core core_;
  agent::Session session_;
  std::map<agent::TrainerId, Trainer> trainers_;
  std::deque<agent::Event> pending_events_;
  absl::Time now_;
  uint64_t links_ = 0;
  uint64_t flood_window_ = 0;
  bool left_ = false;
  bool over_ = false;
};

}  // namespace trainyard::bench
