// How often ranks report, as policies assume it.
#pragma once

#include "absl/time/time.h"

namespace trainyard {

// Slightly longer than the interval between two reports of a rank: a report of at most this age is current.
inline constexpr absl::Duration kReportInterval = absl::Milliseconds(600);

}  // namespace trainyard
