// The states of a job and what leads from one to the next: one table, which the core moves jobs by and ARCHITECTURE.md
// prints. Pure.
//
//                     ┌──────────────◀─────────────┐ placed again
//   QUEUED ─▶ PLACED ─▶ STARTING ─▶ RUNNING ─▶ RECOVERING        (a rank failed, restarts are left)
//      │         │          │          │  └─────────────────▶ SUCCEEDED
//      │         └──────────┴────┬─────┘
//      ▼                         ▼
//   CANCELLED, FAILED ◀────── STOPPING ──▶ QUEUED, PAUSED
//                             (cancelled, failed for good, or ended as asked: restart, drain, pause; ranks are being
//                             ended. Back to RUNNING where the save before such an end fails)
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
  kAllDone,         // every rank made all steps and exited with 0
  kRestart,         // a rank failed; the group is to be formed again
  kGiveUp,          // a rank failed in a way, or so often, that starting again is no use
  kStopAsked,       // restart, pause or drain: the group is to end, and nothing has failed
  kStopUndone,      // the save before such an end failed: the group goes on as it was
  kPause,           // asked of a job that has no group
  kResume,          // asked of a paused job
  kCancel,          // somebody asked
  kEndedRestart,    // the ranks are gone, and a new group is to be formed, as was asked
  kEndedPaused,     // the ranks are gone, and the job rests, as was asked
  kEndedCancelled,  // the ranks are gone, as was asked
  kEndedFailed,     // the ranks are gone after the job was given up
};

struct Transition {
  v1::JobState from;
  LifecycleEvent event;
  v1::JobState to;
};

const std::vector<Transition>& LifecycleTable();

// None: the event means nothing in this state.
std::optional<v1::JobState> NextState(v1::JobState from, LifecycleEvent event);

// SUCCEEDED, FAILED, CANCELLED: nothing leads out of these.
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
