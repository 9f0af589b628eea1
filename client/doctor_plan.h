// Which hosts are probed with which, and what the numbers say of each. A slow pair does not tell which of its two hosts
// is at fault; paired a second time, each with a host of a fast pair, it does. Pure.
//
//   first = neighbours;  second = those of slow pairs, each with one of the fastest;  verdicts = Judge(both)
#pragma once

#include <string>
#include <vector>

namespace trainyard::client {

struct ProbeHost {
  std::string name;
  unsigned cores = 0;  // matrix products are compared per core
};

// One or two hosts: the odd one out is probed alone first, which times its matrix product only.
using ProbePair = std::vector<std::string>;

struct ProbeResult {
  ProbePair hosts;
  std::string error;           // why there are no numbers; empty: there are
  std::vector<double> gflops;  // in the order of `hosts`
  double latency_s = 0;        // all-reduce of 8 bytes, the slower of both ranks; 0: alone
  double bytes_per_s = 0;      // the larger all-reduce, the slower of both ranks
};

struct ProbeLimits {
  // Slower than this share of the median (of all hosts, of all pairs) is slow.
  double share = 0.6;
  // A pair with a longer all-reduce of 8 bytes than so many times the median and than this is slow.
  double latency_factor = 4;
  double latency_floor_s = 1e-3;
  // Slow whatever the others do.
  double latency_max_s = 0.1;
  double bytes_per_s_min = 5e6;
};

std::vector<ProbePair> FirstRound(const std::vector<ProbeHost>& hosts);

// Empty: the first round says all there is to say.
std::vector<ProbePair> SecondRound(const std::vector<ProbeHost>& hosts, const std::vector<ProbeResult>& first,
                                   const ProbeLimits& limits);

struct HostVerdict {
  enum class Kind {
    kGood,
    kSlowCompute,  // its own matrix product
    kBadNetwork,   // slow, or no probe at all, with partners that are well without it
    kSuspect,      // it or its partner, and no third host that could tell which
  };
  std::string host;
  Kind kind = Kind::kGood;
  std::string text;  // with the numbers and what they are compared with
};

// In the order of `hosts`. A host with both a slow product and a bad network is told as the latter, with both in words.
std::vector<HostVerdict> Judge(const std::vector<ProbeHost>& hosts, const std::vector<ProbeResult>& first,
                               const std::vector<ProbeResult>& second, const ProbeLimits& limits);

}  // namespace trainyard::client
