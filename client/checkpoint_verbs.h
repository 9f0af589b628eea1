// The verbs of `trainctl checkpoint` that have files of their own, except `now` (checkpoint_job.h).
#pragma once

#include "client/commands.h"

namespace trainyard::client {

void AddCheckpointExport(CLI::App& app, const Globals& globals, Chosen* chosen);   // checkpoint_convert.cc
void AddCheckpointImport(CLI::App& app, Chosen* chosen);                           // checkpoint_convert.cc
void AddCheckpointReshard(CLI::App& app, const Globals& globals, Chosen* chosen);  // checkpoint_reshard.cc

}  // namespace trainyard::client
