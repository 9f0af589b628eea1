// One simulated host: the worker daemon's production core and session, with stand-ins for what lies below them. Its
// trainers start at once, exchange one value each, are ready, and then do as the bench says.
//
// Everything but the session's own threads runs on the fleet's thread.
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

// What the bench waits for.
enum class Milestone {
  kAttached,   // welcomed by the coordinator
  kGo,         // a trainer was told to make steps
  kDropped,    // a trainer was told to end since it is no longer wanted, or killed
  kExitTold,   // a trainer's exit is durable at the coordinator
  kFactsTold,  // as many facts of a flood are durable
  kDetached,   // the stream has ended
  kRefused,    // the daemon was told to leave by the coordinator, or by the bench
};
constexpr size_t kMilestones = 7;

class SimulatedHost {
 public:
  using Command = std::function<void(SimulatedHost&)>;
  // So many more values of a group have come.
  struct ValuesCame {
    agent::GroupId group;
    uint32_t count;
  };
  using Item = std::variant<agent::Event, ValuesCame, Command>;

  struct Options {
    std::string coordinator;
    std::string name;
    uint64_t incarnation = 1;
    // Puts an item into the fleet's queue, for this host; from any thread.
    std::function<void(Item)> post;
    // On the fleet's thread.
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
  // Every trainer has made its one step and exits with 0.
  void FinishTrainers();
  // The trainer is killed by signal 9, as by the kernel for want of memory.
  void KillTrainer();
  // `window` facts are always on their way from here on; 0 ends it.
  void Flood(uint64_t window);
  void LeaveCluster() { Take(agent::LeaveRequested{agent::Leaving::kStayingTrainers}); }
  // For the end of the bench, so that hosts end beside one another.
  void HangUp() { session_.HangUp("the bench ends"); }

  // It has left the cluster, and its stream has ended: nothing comes of it any more.
  bool over() const { return over_; }

 private:
  struct Trainer {
    v1::DesiredTrainer desired;
    std::string token;
    agent::LinkId link;
    uint64_t last_fact = 0;
    uint64_t acknowledged = 0;
    absl::Time exits_at = absl::InfiniteFuture();  // told to abort: it takes a while, as processes do
    uint32_t values = 0;                           // of its group that have come; what they are is nothing to it
    bool ended = false;
  };

  // Hands the event to the core, and all that comes of it.
  void Take(agent::Event event);
  void Soon(agent::Event event) { soon_.push_back(std::move(event)); }
  Trainer* Find(agent::LinkId link);
  void Say(Trainer& trainer, v1::Fact fact);
  void PutValue(const Trainer& trainer);
  void Count(const ValuesCame& came);
  void EndTrainer(const agent::TrainerId& id, Trainer& trainer, v1::TrainerExited exited);
  void KeepFlooding(Trainer& trainer);
  void EndAborted();

  void Do(agent::Dial& effect) { session_.Dial(effect.hello); }
  void Do(agent::HangUp& effect) { session_.HangUp(effect.reason); }
  void Do(agent::SendUp& effect) { session_.Send(std::move(effect.message)); }
  // The host's disk is no part of the figures: what is written lies there by the next event.
  void Do(agent::StoreFacts&) { options_.post(agent::Event(agent::FactsStored{absl::OkStatus()})); }
  void Do(agent::StartProcess& effect);
  void Do(agent::SendLink& effect);
  void Do(agent::CloseLink& effect);
  void Do(agent::SignalProcess& effect);
  void Do(agent::MarkReported& effect);
  void Do(agent::Leave& effect);
  // What has no part in the figures: log lines, the watch of output, files.
  template <typename T>
  void Do(T&) {}

  const Options options_;
  agent::Core core_;
  agent::Session session_;
  std::map<agent::TrainerId, Trainer> trainers_;
  std::deque<agent::Event> soon_;
  absl::Time now_;
  uint64_t links_ = 0;
  uint64_t flood_window_ = 0;
  bool left_ = false;
  bool over_ = false;
};

}  // namespace trainyard::bench
