// Stores the reports of one trainer until they are sent to the coordinator. Reports never block a step and may be lost:
// only the newest is sent, about twice a second. The steps and evaluations that rank 0 reports are an exception,
// because it reports each of them only once: the last 4,096 of each kind are stored, and are sent again on every new
// stream (the coordinator drops duplicates). The last 20 checkpoints that a script has reported are stored, too.
//
// The first report after a pause is sent immediately, so that users see a first step without delay. Later steps are
// sent together, so that a job with a thousand steps per second does not need a message for each.
//
// Part of the daemon's core: no thread, lock or clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "trainyard/v1/agent.pb.h"

namespace trainyard::agent {

class ReportBuffer {
 public:
  void Add(const v1::RankReport& report, absl::Time now);

  // Sets what the daemon observes of the process. It is added to every later report.
  void SetProcess(std::string state, double cpu_s);
  // Lets the last report be sent once more, with the present state of the process. Called if the trainer is `silent`,
  // or cannot report because its link is not open.
  void RepeatLast(const v1::TrainerKey& key, bool silent, absl::Time now);

  // When the next message is due; InfiniteFuture if there is nothing to report.
  absl::Time due() const;

  // Returns all reports that were not sent yet on this stream, oldest first; one of them carries the number of dropped
  // steps. A report has at most limits::kReportsPerMessage steps and one checkpoint of a script; steps come first.
  std::vector<v1::RankReport> TakeUnsent(absl::Time now);

  // Called when there is a new stream, on which everything that is stored must be sent.
  void Rewind();

 private:
  template <typename Report>
  struct Queue {
    std::deque<Report> items;
    size_t unsent = 0;       // index of the first item not sent on this stream
    uint64_t last_step = 0;  // of the newest item; others up to it are repetitions after the trainer's link broke

    // Returns how many items were removed before they were sent.
    uint64_t Add(const Report& report);
  };

  void AddCheckpoint(const v1::ScriptCheckpoint& checkpoint);
  void TakeCheckpoints(std::vector<v1::RankReport>& reports);

  v1::RankReport newest_;  // without steps and evaluations; its phase times are those not reported yet
  std::string process_state_;
  double process_cpu_s_ = 0;
  absl::Time newest_at_;           // when newest_ was received; absl::Time(): there is none
  bool newest_is_unsent_ = false;  // on this stream
  absl::Time sent_at_ = absl::InfinitePast();
  Queue<v1::StepReport> steps_;
  Queue<v1::EvalReport> evals_;
  std::deque<v1::ScriptCheckpoint> checkpoints_;
  size_t unsent_checkpoints_ = 0;    // index of the first one not sent on this stream
  uint64_t trainer_dropped_ = 0;     // the trainer's own count since it started
  uint64_t unreported_dropped_ = 0;  // steps dropped by the trainer or here that no sent report has counted yet
};

}  // namespace trainyard::agent
