// What happened to a job and why, from its durable events: state changes and decisions, in words, with their times.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// Whether an event belongs to the chain of decisions: a state change, a notice that names the rule it was made by, or a
// warning (a host that cannot be reached, a save that failed), which is what decisions rest on.
bool IsDecision(const v1::Event& event);

// "14:02:11.250  running     all 2 ranks are ready", the kinds and rules aligned. With `job_ids` the job and host stand
// before it. The date stands there too when it is not that of `now`.
struct EventTextOptions {
  absl::TimeZone zone;
  absl::Time now;
  bool job_ids = false;
};
std::string EventText(const v1::Event& event, const EventTextOptions& options);

// Whether anything went wrong with the job or its hosts so far, as far as is still known: where events are no longer
// kept (Job.events_dropped), false says nothing.
bool WasDisturbed(const v1::Job& job, const v1::ListEventsResponse& events);

// "12 events are no longer kept"; empty: all are.
std::string DroppedText(uint64_t dropped);

// How the job stands, then the decisions of each generation under a line of its own.
std::string WhyText(const v1::Job& job, const v1::ListEventsResponse& events, const EventTextOptions& options);

// {"id":"...","state":"RUNNING",...,"events_dropped":0,"disturbed":true,
// "chain":[{"event":"state",...},{"event":"notice","rule":"hang",...}]}. "disturbed" is null where nothing is known
// that disturbed the job, and events are no longer kept.
std::string WhyJson(const v1::Job& job, const v1::ListEventsResponse& events);

}  // namespace trainyard::client
