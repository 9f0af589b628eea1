// Knows what is true in the simulated world, independently of what the coordinator believes, and checks the named
// invariants. The first broken invariant ends the run.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/core.h"
#include "spec/job_layout.h"
#include "tests/sim/engine.h"
#include "tests/sim/scenario.h"
#include "tests/sim/storage.h"
#include "worker/agent/trainer_id.h"

namespace trainyard::sim {

using agent::GroupId;
using agent::TrainerId;

// The names of the invariants, as violations report them.
namespace invariant {
inline constexpr char kOneGeneration[] = "one-generation";     // generation g has no effect after g + 1 is recorded
inline constexpr char kRankOnce[] = "rank-once";               // no rank of a generation runs twice
inline constexpr char kDurable[] = "acknowledged-is-durable";  // answered requests survive every crash
inline constexpr char kFenced[] = "fenced-changes-nothing";    // messages of old streams or generations change nothing
inline constexpr char kSentOnce[] = "steps-published-once";    // a watcher gets each step once and in order
inline constexpr char kContact[] = "lost-contact-ends-nothing";  // no trainer is killed only because of lost contact
inline constexpr char kProgress[] = "progress-after-healing";    // every job ends if there are slots for it
inline constexpr char kReasons[] = "decisions-have-reasons";
inline constexpr char kBounded[] = "memory-is-bounded";
inline constexpr char kConsistent[] = "core-is-consistent";        // Core::Check
inline constexpr char kTrueFacts[] = "records-are-true";           // recorded facts about ranks are true
inline constexpr char kRestartPoint[] = "restart-point-is-there";  // a recorded checkpoint exists
inline constexpr char kSlots[] = "slots-hold";                     // no host runs more trainers than it has slots
inline constexpr char kOutcome[] = "outcome-is-deserved";          // a job fails or is cancelled only for a true cause
inline constexpr char kGrantsKept[] = "grants-are-kept";           // no group resumes from a step before a granted one
inline constexpr char kWholeSaves[] = "only-whole-saves-are-used";
inline constexpr char kFencedSave[] = "fenced-saves-nothing";  // a save of another generation gets no name and no grant
inline constexpr char kOneContent[] = "one-content-a-step";    // granted saves of a step have the same contents
// once a generation has settled a folder (named or removed the saves that others left), no older partial save is there
inline constexpr char kNoLeak[] = "nothing-is-left-behind";
// one job at a time trains in a folder, and it uses no other job's checkpoints
inline constexpr char kOneJob[] = "a-folder-has-one-job";
// the last step of a job that succeeded is saved completely under its name
inline constexpr char kSaved[] = "success-is-saved";
// the ranks of a tensor group run on one host
inline constexpr char kTensorHost[] = "tensor-groups-share-a-host";
// a restart because of a hang names a rank that was faulty; a stopped rank of a divided model is named in time
inline constexpr char kBlame[] = "hangs-name-their-cause";
// the number of ranks of an elastic job is within the limits of the job, and all ranks get the same number
inline constexpr char kElasticSize[] = "elastic-size-holds";
// an elastic job gets more ranks once slots for them have been free for long enough, and this counts as no restart
inline constexpr char kGrowth[] = "elastic-jobs-grow-in-time";
// the jobs of a namespace use at most its quota
inline constexpr char kQuota[] = "quotas-hold";
// a job is preempted only for one of a higher priority, and only after it has trained for long enough
inline constexpr char kPreemption[] = "preemption-is-deserved";
// no job starts on slots for which a job ahead of it has waited for long
inline constexpr char kOvertaking[] = "nobody-is-overtaken-for-ever";
// a job does not wait while jobs of lower priorities, which may be preempted, hold its slots
inline constexpr char kPriorities[] = "priorities-are-served";
inline constexpr char kPaused[] = "paused-until-resumed";
inline constexpr const char* kAll[] = {kOneGeneration, kRankOnce, kDurable,    kFenced,     kSentOnce,   kContact,
                                       kProgress,      kReasons,  kBounded,    kConsistent, kTrueFacts,  kSlots,
                                       kRestartPoint,  kOutcome,  kGrantsKept, kWholeSaves, kFencedSave, kOneContent,
                                       kNoLeak,        kOneJob,   kSaved,      kBlame,      kTensorHost, kElasticSize,
                                       kGrowth,        kQuota,    kPreemption, kOvertaking, kPriorities, kPaused};
}  // namespace invariant

struct Violation {
  std::string invariant;
  std::string text;
  absl::Time at;
};

struct JobOutcome {
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  uint64_t generation = 0;
};

// What really happened to one trainer process.
struct TrainerTruth {
  TrainerId id;
  std::string host;
  bool ended = false;
  bool ready = false;
  bool finished = false;
};

// "job10001 generation 2".
std::string NameOf(const Job& job);

class Judge {
 public:
  // `scenario` must outlive this object.
  Judge(Engine& engine, const Scenario& scenario, bool trace) : engine_(engine), scenario_(scenario), trace_(trace) {}

  void ReportViolation(const char* invariant, std::string text);  // the first one ends the run
  const std::optional<Violation>& violation() const { return violation_; }

  bool tracing() const { return trace_; }
  // Adds a line to the trace, which stores the newest lines.
  void Trace(absl::string_view text);
  const std::deque<std::string>& trace() const { return lines_; }

  // ---- what really happens ----
  void Started(const TrainerId& id, const std::string& host, int64_t pid);
  TrainerTruth& Truth(int64_t pid) { return processes_.at(pid); }
  // This generation was affected by something other than lost contact, or its end was requested.
  void NoteHarm(const GroupId& group, absl::string_view what);
  // Like NoteHarm, for all generations of the job, because an operator requested something.
  void NoteHarmToJob(const JobId& job) { harmed_jobs_.insert(job); }
  // All ranks of the generation have received `go`: from here on it trains.
  void Began(const GroupId& group) { began_.insert(group); }
  // This rank was made slow.
  void NoteSlow(const TrainerId& id) { slow_.insert(id); }
  // This rank was stopped or has left out an operation.
  void NoteFaulty(const TrainerId& id) { faulty_.insert(id); }
  // The generation must have been ended because of this stopped rank or another faulty one.
  void CheckBlamed(const TrainerId& id, absl::Duration limit);
  // Records the layout with which the job was submitted.
  void SetLayout(const JobId& job, const JobLayout& layout) { layouts_[job] = layout; }
  // The job is a script, with these limits.
  void SetScript(const JobId& job, const JobPlan& plan) { scripts_[job] = plan; }
  // A process of a script was started as one of so many ranks.
  void ScriptStarted(int64_t pid, uint32_t world_size);
  // The script has done all its work.
  void ScriptIsDone(const JobId& job) { scripts_done_.insert(job); }

  // A user has requested another priority; from here on only the coordinator knows it.
  void PriorityChanges(const JobId& job) { priority_changed_.insert(job); }
  void ResumeRequested(const JobId& job) { resumed_.insert(job); }
  // All faults are over.
  void Healed() { healed_ = true; }
  // A watcher was sent this state of the job.
  void StateSent(const JobId& job, uint64_t generation, v1::JobState state);
  void SubmissionAnswered(const JobId& job) { submitted_.insert(job); }
  // The state of the job in the coordinator after its last round.
  JobOutcome OutcomeOf(const JobId& job) const;
  const std::set<JobId>& submitted() const { return submitted_; }
  // Reports of the job were lost with a process, or count as lost because their host was given up.
  void NoteLostReports(const JobId& job) { reports_lost_.insert(job); }
  bool HasLostReports(const JobId& job) const { return reports_lost_.contains(job); }
  void CancelRequested(const JobId& job) { cancelled_.insert(job); }
  void CancelAnswered(const JobId& job) { cancel_answered_.insert(job); }

  // ---- saves ----
  // The coordinator has granted this save to a host.
  void Granted(const JobId& job, const v1::CheckpointGrant& grant);
  // A save got its name from the generation that made it.
  void CheckNamed(const JobId& job, Writer writer, uint64_t step, const RunFolder& folder);
  // This process claims the folder, which is in the given state.
  void CheckClaim(const TrainerId& id, const RunFolder& folder);
  // `from` is null if the rank starts from scratch. `allow_others`: a user requested to resume from any checkpoint in
  // the folder.
  void CheckRestored(const TrainerId& id, uint64_t step, const Checkpoint* from, bool allow_others);
  // This job and another one were given the same folder: one of them may be refused.
  void ShareFolder(const JobId& job) { sharing_.insert(job); }
  // No partial save of an earlier generation is left in the folder.
  void CheckNothingLeft(const JobId& job, const RunFolder& folder);
  // Granted steps by job, with their hashes; the next incarnation of the cluster resumes from them.
  using Grants = std::map<JobId, std::map<uint64_t, std::string>>;
  const Grants& granted() const { return granted_; }
  void SetGranted(Grants granted) { granted_ = std::move(granted); }

  // ---- the coordinator's state ----
  void AfterRound(const Core& core, bool check_state);
  void AfterLoad(const Core& core);
  void AtEnd(const Core& core);
  void CheckEvent(const JobId& job, const v1::Event& event);
  void CheckDecision(const JobId& job, const v1::Event& event);
  // Returns when a message of the host last reached the coordinator's process; unset: contacts are not checked.
  std::function<absl::Time(const std::string& host)> last_contact;
  // Returns the folder in which this job saves.
  std::function<const RunFolder&(const JobId&)> folder_of;

 private:
  void CheckJob(const Job& job);
  void CheckRank(const Job& job, const Rank& rank);
  void CheckGivenUp(const TrainerId& id, const v1::RankRecord& record);
  void CheckStateChange(const Job& job);
  void CheckSuccess(const Job& job);
  void CheckHang(const Job& job);
  void CheckScript(const Job& job);
  void CheckScriptEnd(const Job& job, v1::JobState before, absl::Duration ran);
  void CheckSize(const JobId& job, size_t ranks, absl::string_view what);
  // judge_queue.cc
  void CheckQueue(const Core& core);
  void CheckQuotas(const Core& core);
  void CheckPreempted(const Job& job);
  void CheckOvertaken(const Core& core, const Job& started);
  void CheckServed(const Core& core, const Job& job);
  void CheckPaused(const Job& job);

  void CheckTensorGroup(const TrainerId& id, const std::string& host);

  struct KnownState {
    uint64_t generation = 0;
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    absl::Time running_since = absl::InfiniteFuture();
  };

  Engine& engine_;
  const Scenario& scenario_;
  const bool trace_;
  std::optional<Violation> violation_;
  std::deque<std::string> lines_;
  std::map<int64_t, TrainerTruth> processes_;
  std::map<TrainerId, int64_t> pids_;
  std::map<GroupId, std::string> harmed_;
  std::set<GroupId> began_;
  std::set<TrainerId> slow_;
  std::set<TrainerId> faulty_;
  std::set<GroupId> hung_;        // ended because of a hang
  std::set<TrainerId> given_up_;  // ranks of lost hosts
  std::set<JobId> harmed_jobs_;
  std::set<JobId> sharing_;                   // jobs that share their folder with another one
  std::map<JobId, uint64_t> newest_started_;  // the newest generation of which a rank was started
  std::set<JobId> submitted_;
  std::set<JobId> reports_lost_;
  std::set<JobId> cancelled_;
  std::set<JobId> cancel_answered_;
  std::map<JobId, KnownState> known_states_;
  std::map<JobId, KnownState> published_;
  Grants granted_;
  std::map<JobId, JobLayout> layouts_;
  std::map<JobId, JobPlan> scripts_;
  std::set<JobId> scripts_done_;
  std::map<GroupId, uint32_t> world_sizes_;                            // of scripts
  std::map<std::pair<GroupId, std::string>, uint32_t> ranks_on_host_;  // of scripts
  std::map<JobId, std::pair<uint64_t, uint32_t>>
      growths_;  // the generation that grew last, and the restarts until then
  std::map<std::pair<GroupId, uint64_t>, std::string> tensor_hosts_;  // by the number of the tensor group

  bool healed_ = false;
  std::set<JobId> priority_changed_;
  std::set<JobId> resumed_;                      // since they were paused
  std::map<JobId, absl::Time> waits_since_;      // jobs that were never placed, since they were first seen to wait
  std::map<JobId, absl::Time> unserved_since_;   // since when preemption could give a job its slots
  std::set<JobId> started_;                      // jobs that were placed
  std::map<GroupId, absl::Time> running_since_;  // when a group was first seen RUNNING
  std::set<JobId> paused_;
};

}  // namespace trainyard::sim
