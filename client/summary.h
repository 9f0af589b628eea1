// What a person reads when a run has ended: how, how fast, how well, where the files are, and the loss curve. Pure.
#pragma once

#include <string>
#include <vector>

#include "client/run_stats.h"
#include "client/terminal.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

struct SummaryInput {
  const v1::Job& job;
  const RunStats& stats;
  TerminalTraits traits;
  std::string logs_place;  // "in DIR" or "trainctl logs ID"
  // Of the rank that failed, if one did.
  std::vector<std::string> last_lines;
};

std::string Summary(const SummaryInput& input);

// The rank whose end made the job fail: the one its reason names, else the first that did not exit with 0; -1: none.
int FailedRank(const v1::Job& job);

}  // namespace trainyard::client
