// The verbs below `trainctl checkpoint` that lie in files of their own.
#pragma once

#include "client/commands.h"

namespace trainyard::client {

void AddCheckpointExport(CLI::App& app, Chosen* chosen);  // checkpoint_convert.cc
void AddCheckpointImport(CLI::App& app, Chosen* chosen);  // checkpoint_convert.cc

}  // namespace trainyard::client
