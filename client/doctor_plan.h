// Decides which hosts are probed together and what the results say about each. A slow pair does not show which of its
// two hosts is slow; pairing each of them with a host of a fast pair shows it. Pure.
//
//   first = adjacent hosts;  second = hosts without a good pair, each with one of the fastest;  verdicts = Judge(both)
#pragma once

#include <string>
#include <vector>

namespace trainyard::client {

struct ProbeHost {
  std::string name;
  unsigned cores = 0;  // matrix products are compared per core
};

// One or two hosts. With an odd number of hosts, the first round probes the last one alone, which only times its matrix
// product.
using ProbePair = std::vector<std::string>;

struct ProbeResult {
  ProbePair hosts;
  std::string error;           // why the probe failed; empty: it succeeded
  std::vector<double> gflops;  // in the order of `hosts`
  double latency_s = 0;        // of an 8-byte all-reduce, by the slower rank; 0: probed alone
  double bytes_per_s = 0;      // of the larger all-reduce, by the slower rank
};

struct ProbeLimits {
  // A host or pair below this share of the median of all hosts or pairs is slow.
  double share = 0.6;
  // A pair is slow if its 8-byte all-reduce takes longer than this many times the median and longer than the floor.
  double latency_factor = 4;
  double latency_floor_s = 1e-3;
  // Limits that do not depend on the other hosts.
  double latency_max_s = 0.1;
  double bytes_per_s_min = 5e6;
};

std::vector<ProbePair> FirstRound(const std::vector<ProbeHost>& hosts);

// Returns the pairs of the second round: each has a host that was in no good pair, and a host of a good pair. Empty if
// all hosts or none were in a good pair.
std::vector<ProbePair> SecondRound(const std::vector<ProbeHost>& hosts, const std::vector<ProbeResult>& first,
                                   const ProbeLimits& limits);

struct HostVerdict {
  enum class Kind {
    kGood,
    kSlowCompute,  // its matrix product is slow
    kBadNetwork,   // its probes with a good partner were slow or failed, or its probe alone failed
    kSuspect,      // the host or its partner is bad; no third host was available to find out which
  };
  std::string host;
  Kind kind = Kind::kGood;
  std::string text;  // includes the measurements and what they are compared with
};

// Returns verdicts in the order of `hosts`. A host with both a slow matrix product and a bad network gets kBadNetwork;
// its text names both.
std::vector<HostVerdict> Judge(const std::vector<ProbeHost>& hosts, const std::vector<ProbeResult>& first,
                               const std::vector<ProbeResult>& second, const ProbeLimits& limits);

}  // namespace trainyard::client
