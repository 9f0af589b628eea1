// One trainer process as the control plane sees it: it registers with its daemon, exchanges rendezvous values with its
// peers, becomes ready, steps with its group, reports, saves, and ends. Its facts are stored until they are
// acknowledged, across all incarnations of its daemon.
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/daemon_process.h"
#include "tests/sim/rank_process.h"
#include "tests/sim/storage.h"
#include "trainyard/v1/trainer.pb.h"

namespace trainyard::sim {

class Group;

class Trainer : public RankProcess, public std::enable_shared_from_this<Trainer> {
 public:
  Trainer(World& world, Machine& machine, const TrainerId& id, std::string token, int64_t pid, uint32_t world_size);

  void Boot();
  void Signal(int signal);
  void Freeze();
  void Slow(double times, absl::Duration lasts);
  void Disconnect();  // its host has died: no process records how the trainer ended

  // ---- called by its daemon ----
  void HandleMessage(const PipePtr& pipe, const v1::LinkMessage& message);
  void PipeEnded(const PipePtr& pipe, const absl::Status& status);
  void JoinWhenPossible();

  // ---- called by its group ----
  Group& group() { return *group_; }
  bool has_go() const { return go_; }
  bool joined() const { return stage_ >= Stage::kReady; }
  double cpu_s() const { return static_cast<double>(last_step_); }
  double slowness() const { return slowness_; }
  bool stop_requested() const { return stop_; }
  // For rank 0: the save before the stop has failed. Returns true if the stop is cancelled.
  bool CancelStop(uint64_t step);
  uint64_t first_step() const { return first_step_; }
  void StepMade(uint64_t step, absl::Duration took, absl::Duration computed);
  void Evaluated(uint64_t step);
  void SetPhase(const std::string& phase);
  void BeginPart(uint64_t step);
  void Assemble(uint64_t step);
  void AssembleNext();
  void Assembled();
  // Called on rank 0 when a rank could not write its part.
  void AbandonSave(uint64_t step);
  // Called on rank 0: finishes once the last save has its final name.
  void FinishNamed(uint64_t step, bool stopped);
  void PeerDisconnected(uint64_t step);
  void Finish(uint64_t step, bool stopped, const std::string& unsaved = "");
  // For rank 0 and the last save: `assembled` means complete or failed, `abandoned` means failed; RestartSave prepares
  // a retry.
  bool assembled(uint64_t step) const { return assembled_ >= step; }
  bool abandoned(uint64_t step) const { return abandoned_ == step; }
  void RestartSave(uint64_t step);
  // Whether the trainer was cancelled or ordered to exit, so that a failed save is not retried.
  bool gives_up() const { return leave_ || (stop_ && !stop_needs_save_); }
  // A planted bug: reports a save that was not made.
  void ClaimSaved(uint64_t step);
  void Exit(int code);

 private:
  enum class Stage { kBooting, kJoining, kRendezvous, kReady, kEnding };

  void Connect();
  void Register(const v1::DesiredTrainer& order);
  void Rendezvous();
  void BeReady();

  // saves.cc
  Writer writer() const;
  // Calls `act` after a random time between `shortest` and `longest`, unless the trainer has ended. A fault may strike
  // at this point.
  void After(absl::Duration shortest, absl::Duration longest, void (Trainer::*act)(uint64_t), uint64_t step);
  void OpenPart(uint64_t step);
  void WritePart(uint64_t step);
  void ReportSaveFailed(uint64_t step, const std::string& message, uint64_t stop_request = 0);
  void WriteManifest(uint64_t step);
  void ReportReady(uint64_t step);
  void HandleGrants(const v1::GrantSaves& grants);
  void CommitNext();
  void CheckFence(uint64_t step);
  void Commit(uint64_t step);
  void ReportSaved(uint64_t step);
  void FinishWhenNamed(uint64_t step, bool stopped, absl::Time since);
  void ClaimFolder(uint64_t waited_ms);
  void SettleFolder(uint64_t);
  // Reports that no generation of this job can succeed, and exits.
  void Refuse(const std::string& why);
  void Restore(uint64_t);

  uint64_t ReportFact(v1::Fact fact);
  void SendFact(const v1::Fact& fact);
  void FillPosition(v1::RankReport& report);
  void Leave();
  void SendReport();
  void ReportPeriodically();
  void CloseThen(int code);
  void ExitWhenClosed(int code, absl::Time give_up);
  void End(v1::TrainerExited exited);
  void Acknowledged(uint64_t sequence);

  const std::string token_;
  const uint32_t world_size_;
  std::shared_ptr<Group> group_;

  Stage stage_ = Stage::kBooting;
  bool go_ = false;
  bool stop_ = false;
  uint64_t stop_request_ = 0;
  bool stop_needs_save_ = false;
  bool leave_ = false;  // it has received SIGTERM
  uint64_t save_request_ = 0;
  std::deque<uint64_t> to_assemble_;  // saves of rank 0 whose parts are written
  std::deque<uint64_t> waiting_;      // complete saves of rank 0 without a name, oldest first
  std::set<uint64_t> granted_;        // steps
  bool committing_ = false;           // the oldest waiting save is being renamed
  uint64_t assembled_ = 0;            // the newest save that was reported as ready or failed
  uint64_t abandoned_ = 0;            // the newest save that failed
  double slowness_ = 1;               // its computation takes this many times as long as normal
  double compute_s_ = 0;              // total
  PipePtr pipe_;
  std::optional<v1::DesiredTrainer> order_;
  uint64_t first_step_ = 1;
  uint64_t last_step_ = 0;
  std::string phase_ = "starting";
  absl::Time phase_since_;
  std::map<std::string, double> phase_times_;  // phases that ended since the previous report
  std::deque<v1::Fact> facts_;                 // not yet acknowledged
  uint64_t last_fact_ = 0;
  std::deque<v1::StepReport> steps_;
  std::deque<v1::EvalReport> evals_;
  size_t steps_sent_ = 0;
  size_t evals_sent_ = 0;
};

}  // namespace trainyard::sim
