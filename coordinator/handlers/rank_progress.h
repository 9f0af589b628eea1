// The progress of each rank, as the rank and its daemon report it: the input of hang detection, and how long phases
// take.
#pragma once

#include <string>

#include "coordinator/core/turn.h"

namespace trainyard {

void RecordPosition(Turn& turn, Job& job, Rank& rank, const v1::RankReport& report);

// Returns the record of this phase; adds it if there is none.
v1::PhaseRecord& PhaseRecordOf(Job& job, const std::string& phase);

}  // namespace trainyard
