// Writes an imported job as a job file for people, with comments that say from which key of the foreign file each key
// comes, and which keys are still required.
//
// If required keys are missing, the job file is not valid: below `train:`, it has a comment "REQUIRED: ..." for each
// missing key. Pure.
#pragma once

#include <string>

#include "foreign/import.h"

namespace trainyard::foreign {

// `source`: the name of the foreign file. Reading the text as a job file gives `job.spec`.
std::string JobText(const ForeignJob& job, const std::string& source);

}  // namespace trainyard::foreign
