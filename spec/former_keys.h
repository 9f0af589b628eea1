// Renamed keys of job files. The former names are still accepted in job files, by --set and by the API, with a warning.
// Pure.
#pragma once

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// Warns of former names. It is an error if a job gives a key under both names with different values.
void CheckFormerKeys(const v1::JobSpec& spec, const Positions& positions, Problems* problems);

// Replaces former names by the present ones. REQUIRES: CheckFormerKeys has found no error.
void ReplaceFormerKeys(v1::JobSpec& spec);

// Adds the former names to the spec that the ranks receive: hosts of earlier versions know only those.
void AddFormerKeys(v1::JobSpec& spec);

}  // namespace trainyard
