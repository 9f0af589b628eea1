// Writes an imported job as a job file for people, with comments that say from which key of the foreign file each key
// comes, and which keys are still required.
//
// A file with missing keys does not validate: each is a comment that begins with REQUIRED, in its place. Pure.
#pragma once

#include <string>

#include "foreign/import.h"

namespace trainyard::foreign {

// `source`: the name of the foreign file. Reading the text gives `job.spec`.
std::string JobText(const ForeignJob& job, const std::string& source);

}  // namespace trainyard::foreign
