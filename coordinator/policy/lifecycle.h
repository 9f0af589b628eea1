// The states of a job and its transitions: one table, which the core uses and ARCHITECTURE.md prints. Pure.
//
//                ┌────────────────◀────────────────┐ placed again
//   QUEUED ─▶ PLACED ─▶ STARTING ─▶ RUNNING ─▶ RECOVERING        (a rank failed, restarts are left)
//      │         │          │          │  └─────────────────▶ SUCCEEDED
//      │         └──────────┴────┬─────┘
//      ▼                         ▼
//   CANCELLED, FAILED ◀────── STOPPING ──▶ QUEUED, PAUSED
//                             (cancelled, failed permanently, or ended on request: restart, drain, pause, preemption;
//                             its ranks are being ended. Back to RUNNING if the save before such an end fails)
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {

enum class LifecycleEvent {
  kPlaced,          // slots were chosen for every rank
  kTrainerStarted,  // the first trainer of the generation runs
  kAllReady,        // every rank has built its model and warmed up its communicators
  kAllDone,         // every rank made all steps, and exited with 0 or was killed because it did not exit
  kRestart,         // a rank failed; a new group must be formed
  kGiveUp,          // a rank failed in such a way, or so often, that a restart is useless
  kStopRequested,   // restart, pause, drain or preemption: the group must end, but nothing has failed
  kStopUndone,      // the save before the requested stop failed: the group continues
  kPause,           // requested for a job without a group
  kResume,          // requested for a paused job
  kCancel,          // a user requested it
  kEndedRestart,    // all ranks have ended, and a new group must be formed, as requested
  kEndedPreempted,  // all ranks have ended, and the job waits for slots again: another job gets its slots
  kEndedPaused,     // all ranks have ended, and the job pauses, as requested
  kEndedCancelled,  // all ranks have ended, and the job is cancelled, as requested
  kEndedFailed,     // all ranks have ended after the job was given up
};

struct Transition {
  v1::JobState from;
  LifecycleEvent event;
  v1::JobState to;
};

const std::vector<Transition>& LifecycleTable();

// nullopt: the event has no effect in this state.
std::optional<v1::JobState> NextState(v1::JobState from, LifecycleEvent event);

// SUCCEEDED, FAILED and CANCELLED have no transitions to other states.
bool IsFinal(v1::JobState state);
// States in which a generation's trainers may be running.
bool HasTrainers(v1::JobState state);

// "RUNNING".
absl::string_view StateName(v1::JobState state);
// "all_ready".
absl::string_view EventName(LifecycleEvent event);
// The table in Markdown, for ARCHITECTURE.md.
std::string PrintLifecycle();

}  // namespace trainyard
