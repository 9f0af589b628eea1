// Ranks that are slower than the others: calls policy/straggler about once a second and publishes its findings.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

void CheckStragglers(Turn& turn, Job& job);

}  // namespace trainyard
