// Formats the results of trainctl doctor. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "client/doctor_checks.h"
#include "client/doctor_plan.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

struct DoctorReport {
  v1::ListHostsResponse hosts;
  std::vector<Finding> findings;
  std::map<std::string, std::string> skipped;  // host → why it was not probed
  std::vector<ProbeResult> first, second;      // of the two rounds
  std::vector<HostVerdict> verdicts;

  bool AllWell() const;
};

// One line per finding: "PROBLEM  w3: its clock is 2.000 s ahead ...".
std::string FindingsText(const DoctorReport& report);
// "round 1  w1 + w2: 51.2 and 50.9 GFLOP/s, all-reduce 23.0 us for 8 bytes, 2100.0 MB/s".
std::string ProbeText(int round, const ProbeResult& result);
// Why a probe has no result although it has not ended: "the probe did not end within 60 s: RUNNING, ...". `state`: the
// state of the probe's job, or why that state is not known.
std::string UnfinishedProbeText(bool interrupted, double time_limit_s, const std::string& state);
// The skipped hosts, the bad hosts, and a summary.
std::string VerdictsText(const DoctorReport& report);
// The whole report as one object: {"event":"doctor","ok":false,"findings":[...],"probes":[...],"verdicts":[...],...}.
std::string DoctorJson(const DoctorReport& report);

}  // namespace trainyard::client
