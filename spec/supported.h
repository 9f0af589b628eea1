// Keys of the schema that this version can read but not obey: any value but the default is refused. Pure.
#pragma once

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

void CheckSupported(const v1::JobSpec& spec, const Positions& positions, Problems* problems);

}  // namespace trainyard
