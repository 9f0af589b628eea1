#include "coordinator/policy/lifecycle.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace trainyard {

using E = LifecycleEvent;

const std::vector<Transition>& LifecycleTable() {
  static const auto* table = new std::vector<Transition>{
      {v1::JOB_STATE_QUEUED, E::kPlaced, v1::JOB_STATE_PLACED},
      {v1::JOB_STATE_QUEUED, E::kPause, v1::JOB_STATE_PAUSED},
      {v1::JOB_STATE_QUEUED, E::kCancel, v1::JOB_STATE_CANCELLED},
      {v1::JOB_STATE_PLACED, E::kTrainerStarted, v1::JOB_STATE_STARTING},
      {v1::JOB_STATE_PLACED, E::kRestart, v1::JOB_STATE_RECOVERING},
      {v1::JOB_STATE_PLACED, E::kGiveUp, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_PLACED, E::kStopRequested, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_PLACED, E::kCancel, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_STARTING, E::kAllReady, v1::JOB_STATE_RUNNING},
      {v1::JOB_STATE_STARTING, E::kRestart, v1::JOB_STATE_RECOVERING},
      {v1::JOB_STATE_STARTING, E::kGiveUp, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_STARTING, E::kStopRequested, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_STARTING, E::kCancel, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_RUNNING, E::kAllDone, v1::JOB_STATE_SUCCEEDED},
      {v1::JOB_STATE_RUNNING, E::kRestart, v1::JOB_STATE_RECOVERING},
      {v1::JOB_STATE_RUNNING, E::kGiveUp, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_RUNNING, E::kStopRequested, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_RUNNING, E::kCancel, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_RECOVERING, E::kPlaced, v1::JOB_STATE_PLACED},
      {v1::JOB_STATE_RECOVERING, E::kGiveUp, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_RECOVERING, E::kStopRequested, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_RECOVERING, E::kCancel, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_STOPPING, E::kAllDone, v1::JOB_STATE_SUCCEEDED},
      {v1::JOB_STATE_STOPPING, E::kStopUndone, v1::JOB_STATE_RUNNING},
      {v1::JOB_STATE_STOPPING, E::kEndedRestart, v1::JOB_STATE_QUEUED},
      {v1::JOB_STATE_STOPPING, E::kEndedPreempted, v1::JOB_STATE_QUEUED},
      {v1::JOB_STATE_STOPPING, E::kEndedPaused, v1::JOB_STATE_PAUSED},
      {v1::JOB_STATE_STOPPING, E::kEndedCancelled, v1::JOB_STATE_CANCELLED},
      {v1::JOB_STATE_STOPPING, E::kEndedFailed, v1::JOB_STATE_FAILED},
      {v1::JOB_STATE_PAUSED, E::kResume, v1::JOB_STATE_QUEUED},
      {v1::JOB_STATE_PAUSED, E::kCancel, v1::JOB_STATE_CANCELLED},
  };
  return *table;
}

std::optional<v1::JobState> NextState(v1::JobState from, LifecycleEvent event) {
  for (const Transition& transition : LifecycleTable()) {
    if (transition.from == from && transition.event == event) return transition.to;
  }
  return std::nullopt;
}

bool IsFinal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

bool HasTrainers(v1::JobState state) {
  return state == v1::JOB_STATE_PLACED || state == v1::JOB_STATE_STARTING || state == v1::JOB_STATE_RUNNING ||
         state == v1::JOB_STATE_RECOVERING || state == v1::JOB_STATE_STOPPING;
}

absl::string_view StateName(v1::JobState state) {
  // The names are valid as long as the descriptor, which is never destroyed.
  const auto* value = v1::JobState_descriptor()->FindValueByNumber(state);
  if (value == nullptr) return "UNKNOWN";
  return absl::StripPrefix(absl::string_view(value->name()), "JOB_STATE_");
}

absl::string_view EventName(LifecycleEvent event) {
  switch (event) {
    case E::kPlaced:
      return "placed";
    case E::kTrainerStarted:
      return "trainer_started";
    case E::kAllReady:
      return "all_ready";
    case E::kAllDone:
      return "all_done";
    case E::kRestart:
      return "restart";
    case E::kGiveUp:
      return "give_up";
    case E::kStopRequested:
      return "stop_requested";
    case E::kStopUndone:
      return "stop_undone";
    case E::kPause:
      return "pause";
    case E::kResume:
      return "resume";
    case E::kCancel:
      return "cancel";
    case E::kEndedRestart:
      return "ended_restart";
    case E::kEndedPreempted:
      return "ended_preempted";
    case E::kEndedPaused:
      return "ended_paused";
    case E::kEndedCancelled:
      return "ended_cancelled";
    case E::kEndedFailed:
      return "ended_failed";
  }
  return "unknown";
}

std::string PrintLifecycle() {
  std::string text = "| State | Event | Next state |\n|---|---|---|\n";
  for (const Transition& transition : LifecycleTable()) {
    absl::StrAppend(&text, "| ", StateName(transition.from), " | ", EventName(transition.event), " | ",
                    StateName(transition.to), " |\n");
  }
  return text;
}

}  // namespace trainyard
