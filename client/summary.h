// The summary that is printed when a run has ended: result, speed, loss, file locations and the loss curve. Pure.
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
  std::string logs_place;  // "in DIR" or "trainctl logs ID"; empty: the output is removed
  // Last output lines of the failed rank, if any.
  std::vector<std::string> last_lines;
};

std::string Summary(const SummaryInput& input);

// The rank that made the job fail: the first one that the job's reason names, else the first that did not exit with 0;
// -1: none.
int FailedRank(const v1::Job& job);

}  // namespace trainyard::client
