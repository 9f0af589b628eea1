#include "client/doctor_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace trainyard::client {
namespace {

using Results = std::vector<ProbeResult>;

// The upper of the two middle values of an even count, so that one bad value of two is noticed.
double UpperMedian(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double LowerMedian(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

// The median results, with which hosts and pairs are compared.
struct Medians {
  double bytes_per_s = 0;
  double latency_s = 0;
  double gflops_per_core = 0;
};

bool IsNetworkPair(const ProbeResult& result) { return result.hosts.size() == 2; }

std::map<std::string, double> CoresOf(const std::vector<ProbeHost>& hosts) {
  std::map<std::string, double> cores;
  for (const ProbeHost& host : hosts) cores[host.name] = std::max(1u, host.cores);
  return cores;
}

// The fastest matrix product of each host, per core.
std::map<std::string, double> ProductsOf(const std::vector<ProbeHost>& hosts, const Results& first,
                                         const Results& second) {
  const std::map<std::string, double> cores = CoresOf(hosts);
  std::map<std::string, double> products;
  for (const Results* round : {&first, &second}) {
    for (const ProbeResult& result : *round) {
      for (size_t i = 0; i < result.gflops.size() && i < result.hosts.size(); ++i) {
        auto host_cores = cores.find(result.hosts[i]);
        if (host_cores == cores.end()) continue;
        double& best = products[result.hosts[i]];
        best = std::max(best, result.gflops[i] / host_cores->second);
      }
    }
  }
  return products;
}

// Prefers the bandwidths and latencies of the first round, because the second round consists of suspicious pairs, which
// are not typical.
Medians MediansOf(const std::vector<ProbeHost>& hosts, const Results& first, const Results& second) {
  std::vector<double> bandwidths, latencies, products;
  auto add = [&](const Results& round) {
    for (const ProbeResult& result : round) {
      if (!result.error.empty() || !IsNetworkPair(result)) continue;
      bandwidths.push_back(result.bytes_per_s);
      latencies.push_back(result.latency_s);
    }
  };
  add(first);
  if (bandwidths.empty()) add(second);
  for (const auto& [host, product] : ProductsOf(hosts, first, second)) products.push_back(product);
  return {UpperMedian(bandwidths), LowerMedian(latencies), UpperMedian(products)};
}

// Why a pair is bad; empty if it is not.
std::string WhyBadPair(const ProbeResult& result, const Medians& medians, const ProbeLimits& limits) {
  if (!result.error.empty()) return result.error;
  if (!IsNetworkPair(result)) return "";
  if (result.bytes_per_s < std::max(limits.share * medians.bytes_per_s, limits.bytes_per_s_min)) {
    return absl::StrFormat("all-reduce at %.1f MB/s, the median is %.1f", result.bytes_per_s / 1e6,
                           medians.bytes_per_s / 1e6);
  }
  const double longest = std::max(limits.latency_floor_s, limits.latency_factor * medians.latency_s);
  if (result.latency_s > std::min(longest, limits.latency_max_s)) {
    return absl::StrFormat("all-reduce of 8 bytes takes %.0f us, the median is %.0f", result.latency_s * 1e6,
                           medians.latency_s * 1e6);
  }
  return "";
}

// The pairs of one host in both rounds.
std::vector<const ProbeResult*> PairsOf(const std::string& host, const Results& first, const Results& second) {
  std::vector<const ProbeResult*> pairs;
  for (const Results* round : {&first, &second}) {
    for (const ProbeResult& result : *round) {
      if (std::count(result.hosts.begin(), result.hosts.end(), host) > 0) pairs.push_back(&result);
    }
  }
  return pairs;
}

std::string PartnerOf(const std::string& host, const ProbeResult& result) {
  for (const std::string& other : result.hosts) {
    if (other != host) return other;
  }
  return "";
}

// Hosts that are in at least one good pair.
std::set<std::string> ClearedHosts(const Results& first, const Results& second, const Medians& medians,
                                   const ProbeLimits& limits) {
  std::set<std::string> cleared;
  for (const Results* round : {&first, &second}) {
    for (const ProbeResult& result : *round) {
      if (IsNetworkPair(result) && WhyBadPair(result, medians, limits).empty()) {
        cleared.insert(result.hosts.begin(), result.hosts.end());
      }
    }
  }
  return cleared;
}

HostVerdict JudgeNetwork(const std::string& host, const Results& first, const Results& second, const Medians& medians,
                         const std::set<std::string>& cleared, const ProbeLimits& limits) {
  HostVerdict verdict{.host = host, .kind = HostVerdict::Kind::kGood, .text = ""};
  if (cleared.count(host) > 0) return verdict;
  std::vector<std::string> bad;
  bool with_cleared = false;
  for (const ProbeResult* pair : PairsOf(host, first, second)) {
    std::string why = WhyBadPair(*pair, medians, limits);
    if (why.empty()) continue;
    const std::string partner = PartnerOf(host, *pair);
    bad.push_back(partner.empty() ? absl::StrCat("alone: ", why) : absl::StrCat("with ", partner, ": ", why));
    // If a probe of a single host fails, that host is at fault.
    with_cleared = with_cleared || partner.empty() || cleared.count(partner) > 0;
  }
  if (bad.empty()) return verdict;
  verdict.kind = with_cleared ? HostVerdict::Kind::kBadNetwork : HostVerdict::Kind::kSuspect;
  verdict.text = absl::StrJoin(bad, "; ");
  if (!with_cleared)
    absl::StrAppend(&verdict.text, "; no third host was available to find out which of the two is at fault");
  return verdict;
}

// If there were too few fast hosts to pair with every suspect, only one host of a bad pair was paired again. Clears a
// suspect whose bad results all involve a host that is known to be bad.
void ExcusePartners(const Results& first, const Results& second, const Medians& medians, const ProbeLimits& limits,
                    std::vector<HostVerdict>* verdicts) {
  std::set<std::string> bad;
  for (const HostVerdict& verdict : *verdicts) {
    if (verdict.kind == HostVerdict::Kind::kBadNetwork) bad.insert(verdict.host);
  }
  for (HostVerdict& verdict : *verdicts) {
    if (verdict.kind != HostVerdict::Kind::kSuspect) continue;
    bool excused = true;
    for (const ProbeResult* pair : PairsOf(verdict.host, first, second)) {
      if (!WhyBadPair(*pair, medians, limits).empty())
        excused = excused && bad.count(PartnerOf(verdict.host, *pair)) > 0;
    }
    if (excused) verdict = {.host = verdict.host, .kind = HostVerdict::Kind::kGood, .text = ""};
  }
}

}  // namespace

std::vector<ProbePair> FirstRound(const std::vector<ProbeHost>& hosts) {
  std::vector<ProbePair> pairs;
  for (size_t i = 0; i < hosts.size(); i += 2) {
    pairs.push_back({hosts[i].name});
    if (i + 1 < hosts.size()) pairs.back().push_back(hosts[i + 1].name);
  }
  return pairs;
}

std::vector<ProbePair> SecondRound(const std::vector<ProbeHost>& hosts, const Results& first,
                                   const ProbeLimits& limits) {
  const Medians medians = MediansOf(hosts, first, {});
  const std::set<std::string> cleared = ClearedHosts(first, {}, medians, limits);
  std::vector<std::pair<double, std::string>> slow, fast;  // sorted by the bandwidth of their pair
  for (const ProbeHost& host : hosts) {
    double bandwidth = 0;
    for (const ProbeResult* pair : PairsOf(host.name, first, {})) bandwidth = std::max(bandwidth, pair->bytes_per_s);
    (cleared.count(host.name) > 0 ? fast : slow).emplace_back(bandwidth, host.name);
  }
  std::sort(slow.begin(), slow.end());
  std::sort(fast.rbegin(), fast.rend());
  std::vector<ProbePair> pairs;
  for (size_t i = 0; i < slow.size() && i < fast.size(); ++i) pairs.push_back({slow[i].second, fast[i].second});
  return pairs;
}

std::vector<HostVerdict> Judge(const std::vector<ProbeHost>& hosts, const Results& first, const Results& second,
                               const ProbeLimits& limits) {
  const Medians medians = MediansOf(hosts, first, second);
  const std::set<std::string> cleared = ClearedHosts(first, second, medians, limits);
  const std::map<std::string, double> products = ProductsOf(hosts, first, second);
  std::vector<HostVerdict> verdicts;
  for (const ProbeHost& host : hosts) {
    verdicts.push_back(JudgeNetwork(host.name, first, second, medians, cleared, limits));
  }
  ExcusePartners(first, second, medians, limits, &verdicts);
  for (HostVerdict& verdict : verdicts) {
    auto product = products.find(verdict.host);
    if (product == products.end() || product->second >= limits.share * medians.gflops_per_core) continue;
    if (verdict.kind == HostVerdict::Kind::kGood) verdict.kind = HostVerdict::Kind::kSlowCompute;
    absl::StrAppend(&verdict.text, verdict.text.empty() ? "" : "; ",
                    absl::StrFormat("matrix product at %.1f GFLOP/s per core, the median is %.1f", product->second,
                                    medians.gflops_per_core));
  }
  return verdicts;
}

}  // namespace trainyard::client
