// The loss curve of a job, reduced to a number of points that a page can draw. Pure.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "coordinator/core/effect.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {

// Returns the indexes of at most `max` values, in order: of the first, of the last, and of the lowest and the highest
// in each of several equally long parts between them, so that peaks remain. Values that are not finite count as the
// highest.
// REQUIRES: `max` is at least 4.
std::vector<size_t> ThinCurve(const std::vector<double>& values, size_t max);

// Returns at most `max` of the reports in order of their sequence numbers; at most a quarter of them are evaluations.
// The returned steps contain neither the parts of their time nor the memory. REQUIRES: `max` is at least 16.
v1::ListEventsResponse ThinReports(const std::deque<EventPtr>& reports, size_t max);

}  // namespace trainyard
