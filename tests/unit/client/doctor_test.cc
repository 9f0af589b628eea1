// Rounds and verdicts of trainctl doctor, for every position of a bad host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "client/doctor_checks.h"
#include "client/doctor_plan.h"
#include "client/doctor_report.h"
#include "common/version.h"

namespace trainyard::client {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Kind = HostVerdict::Kind;

// A simulated cluster. Each pair is as fast as its slower host; speeds vary from 0.95 to 1.15 times the usual speed.
struct FakeCluster {
  explicit FakeCluster(size_t count) {
    for (size_t i = 0; i < count; ++i) hosts.push_back({.name = absl::StrCat("w", i), .cores = 4});
  }

  ProbeResult Probe(const ProbePair& pair) const {
    ProbeResult result{.hosts = pair, .error = "", .gflops = {}};
    double variation = 0.95;
    for (const std::string& host : pair) {
      variation += 0.001 * static_cast<double>(std::hash<std::string>()(host) % 100);
      result.gflops.push_back(slow_compute.count(host) > 0 ? 60 : 200 * variation);
      if (dead.count(host) > 0) result.error = "the probe failed: a collective broke";
    }
    if (pair.size() < 2) return result;
    result.latency_s = 20e-6;
    result.bytes_per_s = 1e9 * variation;
    for (const std::string& host : pair) {
      if (slow_network.count(host) > 0) result.bytes_per_s = 2e8 * variation;
      if (high_latency.count(host) > 0) result.latency_s = 5e-3;
    }
    return result;
  }

  std::vector<ProbeResult> Round(const std::vector<ProbePair>& pairs) const {
    std::vector<ProbeResult> results;
    for (const ProbePair& pair : pairs) results.push_back(Probe(pair));
    return results;
  }

  // Host → verdict, for hosts that are not good.
  std::map<std::string, Kind> BadHosts() {
    auto first = Round(FirstRound(hosts));
    second_pairs = SecondRound(hosts, first, limits);
    std::set<std::string> busy;
    for (const ProbePair& pair : second_pairs) {
      for (const std::string& host : pair)
        EXPECT_TRUE(busy.insert(host).second) << host << " is in two pairs of a round";
    }
    std::map<std::string, Kind> bad;
    for (const HostVerdict& verdict : Judge(hosts, first, Round(second_pairs), limits)) {
      if (verdict.kind != Kind::kGood) bad[verdict.host] = verdict.kind;
      EXPECT_EQ(verdict.kind == Kind::kGood, verdict.text.empty()) << verdict.text;
    }
    return bad;
  }

  std::vector<ProbeHost> hosts;
  std::set<std::string> slow_compute, slow_network, high_latency, dead;
  ProbeLimits limits;
  std::vector<ProbePair> second_pairs;
};

TEST(Doctor, FirstRoundPairsNeighbours) {
  EXPECT_THAT(FirstRound(FakeCluster(4).hosts), ElementsAre(ElementsAre("w0", "w1"), ElementsAre("w2", "w3")));
  EXPECT_THAT(FirstRound(FakeCluster(3).hosts), ElementsAre(ElementsAre("w0", "w1"), ElementsAre("w2")));
  EXPECT_THAT(FirstRound({}), IsEmpty());
}

TEST(Doctor, GoodHosts_NeedNoSecondRound) {
  FakeCluster cluster(64);

  EXPECT_TRUE(cluster.BadHosts().empty());
  EXPECT_THAT(cluster.second_pairs, IsEmpty());
}

TEST(Doctor, TwoRounds_FindExactlyTheSlowHostsOf64) {
  for (size_t a = 0; a < 64; ++a) {
    for (size_t b = a; b < 64; ++b) {
      FakeCluster cluster(64);
      cluster.slow_network = {absl::StrCat("w", a), absl::StrCat("w", b)};

      std::map<std::string, Kind> bad = cluster.BadHosts();

      std::map<std::string, Kind> expected;
      for (const std::string& host : cluster.slow_network) expected[host] = Kind::kBadNetwork;
      ASSERT_EQ(bad, expected) << "the slow hosts are w" << a << " and w" << b;
      ASSERT_LE(cluster.second_pairs.size(), 4u);
    }
  }
}

TEST(Doctor, EachKindOfProblem_IsFoundAtEveryPosition) {
  for (size_t count : {3, 4, 5, 8, 63}) {
    for (size_t at = 0; at < count; ++at) {
      const std::string host = absl::StrCat("w", at);
      FakeCluster compute(count), network(count), latency(count), dead(count);
      compute.slow_compute = network.slow_network = latency.high_latency = dead.dead = {host};

      EXPECT_EQ(compute.BadHosts(), (std::map<std::string, Kind>{{host, Kind::kSlowCompute}}))
          << count << " hosts, bad: " << host;
      // With three hosts, one host is alone in the first round, and the only pair has nothing to be compared with.
      if (count > 3) {
        EXPECT_EQ(network.BadHosts(), (std::map<std::string, Kind>{{host, Kind::kBadNetwork}}))
            << count << " hosts, bad: " << host;
        EXPECT_EQ(latency.BadHosts(), (std::map<std::string, Kind>{{host, Kind::kBadNetwork}}))
            << count << " hosts, bad: " << host;
        EXPECT_EQ(dead.BadHosts(), (std::map<std::string, Kind>{{host, Kind::kBadNetwork}}))
            << count << " hosts, bad: " << host;
      }
    }
  }
}

TEST(Doctor, BadPairOfOnlyTwoHosts_MakesBothSuspect) {
  FakeCluster cluster(2);
  cluster.dead = {"w1"};

  EXPECT_EQ(cluster.BadHosts(), (std::map<std::string, Kind>{{"w0", Kind::kSuspect}, {"w1", Kind::kSuspect}}));
}

TEST(Doctor, OddHost_IsPairedWithAFastHostInTheSecondRound) {
  FakeCluster cluster(5);

  EXPECT_TRUE(cluster.BadHosts().empty());
  ASSERT_EQ(cluster.second_pairs.size(), 1u);
  EXPECT_EQ(cluster.second_pairs[0][0], "w4");
}

TEST(Doctor, MatrixProducts_AreComparedPerCore) {
  FakeCluster cluster(4);
  cluster.hosts[0].cores = 1;
  cluster.slow_compute = {"w0"};  // 60 GFLOP/s on one core are more than 200 on four

  EXPECT_TRUE(cluster.BadHosts().empty());
}

v1::HostStatus GoodHost(const std::string& name) {
  v1::HostStatus host;
  host.set_name(name);
  host.set_attached(true);
  host.set_reachable(true);
  host.set_slots(2);
  host.set_slots_free(1);
  host.set_version("1.0");
  host.set_torch_version("2.7");
  host.set_data_address("10.0.0.1");
  host.set_disk_free_bytes(uint64_t{100} << 30);
  (*host.mutable_labels())["rack"] = "r1";
  return host;
}

struct CheckRow {
  const char* name;
  void (*break_it)(v1::HostStatus&);
  Finding::Level level;
  const char* text;
};

TEST(DoctorChecks, EachProblemOfAHost_IsNamed) {
  const CheckRow rows[] = {
      {"away", [](v1::HostStatus& h) { h.set_attached(false); }, Finding::Level::kProblem, "is not attached"},
      {"silent", [](v1::HostStatus& h) { h.set_reachable(false); }, Finding::Level::kProblem, "does not answer"},
      {"ahead", [](v1::HostStatus& h) { h.set_clock_offset_s(2); }, Finding::Level::kProblem, "2.000 s ahead of"},
      {"behind", [](v1::HostStatus& h) { h.set_clock_offset_s(-3); }, Finding::Level::kProblem, "3.000 s behind"},
      {"version", [](v1::HostStatus& h) { h.set_version("0.9"); }, Finding::Level::kProblem, "trainyard-worker 0.9"},
      {"torch", [](v1::HostStatus& h) { h.set_torch_version("2.6"); }, Finding::Level::kProblem, "LibTorch 2.6"},
      {"disk", [](v1::HostStatus& h) { h.set_disk_free_bytes(1 << 20); }, Finding::Level::kProblem, "1.0 MiB free"},
      {"little disk", [](v1::HostStatus& h) { h.set_disk_free_bytes(uint64_t{5} << 30); }, Finding::Level::kNote,
       "5.0 GiB free"},
      {"label", [](v1::HostStatus& h) { h.clear_labels(); }, Finding::Level::kNote, "lacks the label rack"},
      {"cordoned", [](v1::HostStatus& h) { h.set_cordoned(true); }, Finding::Level::kNote, "is cordoned"},
      {"address", [](v1::HostStatus& h) { h.set_data_address("127.0.0.1"); }, Finding::Level::kProblem, "loopback"},
  };
  v1::ServerInfo server;
  server.set_version("1.0");
  for (const CheckRow& row : rows) {
    v1::ListHostsResponse hosts;
    for (const char* name : {"w1", "w2", "w3"}) *hosts.add_hosts() = GoodHost(name);
    row.break_it(*hosts.mutable_hosts(1));

    std::vector<Finding> findings = CheckHosts(server, hosts);

    bool found = false;
    for (const Finding& finding : findings) {
      if (finding.subject == "w2" && finding.level == row.level)
        found = found || finding.text.find(row.text) != std::string::npos;
      if (finding.subject == "w1" || finding.subject == "w3") {
        EXPECT_EQ(finding.level, Finding::Level::kOk) << row.name << ": " << finding.text;
      }
    }
    EXPECT_TRUE(found) << row.name;
    EXPECT_EQ(AnyProblem(findings), row.level == Finding::Level::kProblem) << row.name;
  }
}

TEST(DoctorReport, ProbeThatWasInterrupted_IsNotSaidToHaveExceededItsTime) {
  EXPECT_EQ(UnfinishedProbeText(/*interrupted=*/false, 60, "RUNNING, "),
            "the probe did not end within 60 s: RUNNING, ");
  EXPECT_EQ(UnfinishedProbeText(/*interrupted=*/true, 60, "QUEUED, waits for slots"),
            "trainctl was interrupted before the probe ended: QUEUED, waits for slots");
}

TEST(DoctorChecks, BusyAndCordonedHosts_AreSkippedWithAReason) {
  v1::HostStatus host = GoodHost("w1");
  EXPECT_EQ(WhyNotProbed(host), "");
  host.set_slots_free(0);
  host.add_jobs("k3x7q2ab");
  EXPECT_THAT(WhyNotProbed(host), HasSubstr("busy with k3x7q2ab"));
  host.set_cordoned(true);
  EXPECT_EQ(WhyNotProbed(host), "cordoned");
  host.set_attached(false);
  EXPECT_EQ(WhyNotProbed(host), "not attached");
}

TEST(DoctorChecks, MissingProgram_IsANote) {
  std::vector<Finding> findings = CheckThisMachine("/nowhere", "/tmp");

  ASSERT_FALSE(findings.empty());
  EXPECT_THAT(findings[0].text, HasSubstr("/nowhere"));
  EXPECT_FALSE(AnyProblem(findings));
}

}  // namespace
}  // namespace trainyard::client
