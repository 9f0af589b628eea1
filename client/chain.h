// Formats what happened to a job and why: the chain of state changes and decisions in its durable events, with their
// times. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// Returns whether an event belongs to the chain of decisions: a state change, a notice with the rule that caused it, or
// a warning (such as an unreachable host or a failed save) on which decisions are based.
bool IsDecision(const v1::Event& event);

// How EventText formats an event: "14:02:11.250  running     all 2 ranks are ready". The second column shows the new
// state, the rule or level of a notice, or the kind of any other event. `job_ids` inserts a column with the job or host
// before the second. The date precedes the time unless the event is from the same day as `now`.
struct EventTextOptions {
  absl::TimeZone zone;
  absl::Time now;
  bool job_ids = false;
};
std::string EventText(const v1::Event& event, const EventTextOptions& options);

// Returns whether the known events show that anything went wrong with the job or its hosts. If events were dropped
// (Job.events_dropped), false means "not known".
bool WasDisturbed(const v1::Job& job, const v1::ListEventsResponse& events);

// "12 older events have been dropped"; empty for 0.
std::string DroppedText(uint64_t dropped);

// The state of the job, then the decisions of each generation under a heading.
std::string WhyText(const v1::Job& job, const v1::ListEventsResponse& events, const EventTextOptions& options);

// {"id":"...","state":"RUNNING",...,"events_dropped":0,"disturbed":true,
// "chain":[{"event":"state",...},{"event":"notice","rule":"hang",...}]}. "disturbed" is null if events were
// dropped and no remaining one disturbed the job.
std::string WhyJson(const v1::Job& job, const v1::ListEventsResponse& events);

}  // namespace trainyard::client
