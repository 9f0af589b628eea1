// Placement: which hosts are chosen for given facts, or the reason why the job waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/policy/placement.h"
#include "coordinator/policy/rank_assignment.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

HostSlots Slots(const char* name, uint32_t slots, uint32_t free, uint32_t gpus = 0) {
  HostSlots host;
  host.name = HostName(name);
  host.slots = slots;
  host.free = free;
  host.gpus = gpus;
  return host;
}

std::string Describe(const PlacementDecision& decision) {
  std::string text;
  if (!decision.ranks_by_host.has_value()) return decision.reason;
  for (const auto& [host, count] : *decision.ranks_by_host) text += host.value() + "=" + std::to_string(count) + " ";
  return text;
}

TEST(Placement, Probe_GetsOneRankOnEachHostThatItNames) {
  std::vector<HostSlots> hosts = {Slots("w1", 2, 2), Slots("w2", 2, 2), Slots("w3", 2, 0)};
  PlacementFacts facts{.ranks = 2, .needs_gpu = false, .hosts = hosts, .previous = {}};
  facts.one_group_per_host = true;
  facts.allowed = {"w1", "w2"};

  EXPECT_EQ(Describe(DecidePlacement(facts)), "w1=1 w2=1 ");

  facts.allowed = {"w1", "w3"};
  EXPECT_THAT(Describe(DecidePlacement(facts)), HasSubstr("waits for slots: 2 ranks requested"));
}

TEST(Placement, IsAllOrNothing_InNameOrder_AndNamesWhatIsMissing) {
  struct Case {
    uint32_t ranks;
    std::vector<HostSlots> hosts;
    std::vector<HostName> previous;
    std::string expected;
  };
  const Case cases[] = {
      {2, {Slots("a", 2, 2)}, {}, "a=2 "},
      {3, {Slots("a", 2, 2), Slots("b", 4, 4)}, {}, "a=2 b=1 "},
      {3, {Slots("a", 2, 0), Slots("b", 4, 4)}, {}, "b=3 "},
      {1, {}, {}, "waits for slots: 1 rank requested, no host is attached; start trainyard-worker on one"},
      {4, {Slots("w1", 2, 2)}, {}, "waits for slots: 4 ranks requested, 2 of 2 slots free on 1 host (w1)"},
      {5,
       {Slots("a", 1, 1), Slots("b", 1, 1), Slots("c", 1, 0), Slots("d", 1, 1)},
       {},
       "waits for slots: 5 ranks requested, 3 of 4 slots free on 4 hosts (a, b, c and 1 more)"},
      // A host that had ranks keeps them, although another one comes first by name.
      {2, {Slots("a", 2, 2), Slots("b", 2, 2)}, {HostName("b"), HostName("b")}, "b=2 "},
      {2, {Slots("a", 2, 2), Slots("b", 2, 1)}, {HostName("b"), HostName("b")}, "a=1 b=1 "},
  };
  for (const Case& c : cases) {
    PlacementDecision decision = DecidePlacement({.ranks = c.ranks,
                                                  .needs_gpu = false,
                                                  .hosts = c.hosts,
                                                  .previous = c.previous,
                                                  .allowed = {},
                                                  .excluded = {}});
    EXPECT_EQ(Describe(decision), c.expected);
  }
}

TEST(Placement, ACommandWithRanksPerHost_GetsExactlySoManyOnEachHost) {
  std::vector<HostSlots> hosts = {Slots("a", 8, 8), Slots("b", 3, 3), Slots("c", 2, 2)};
  PlacementFacts facts{.ranks = 4, .group = 2, .one_group_per_host = true, .hosts = hosts};
  EXPECT_EQ(Describe(DecidePlacement(facts)), "a=2 b=2 ");

  facts.ranks = 8;
  EXPECT_THAT(Describe(DecidePlacement(facts)), HasSubstr("waits for slots: 8 ranks, 2 on each host, requested, 6 of"));

  facts.ranks = facts.group = 9;
  EXPECT_THAT(Describe(DecidePlacement(facts)), HasSubstr("the largest host has 8 slots; attach hosts with 9 slots"));
}

TEST(Placement, AnElasticJob_GetsAsManyRanksAsFit_InWholeGroups) {
  struct Case {
    uint32_t min_ranks, free_on_b;
    std::string expected;
  };
  const Case cases[] = {
      {2, 2, "a=2 b=2 "},
      {2, 1, "a=2 "},
      {4, 1,
       "waits for slots: at least 4 ranks, 2 on each host, requested, 2 of 4 slots free in whole groups on 2 "
       "hosts (a, b)"},
  };
  for (const Case& c : cases) {
    const std::vector<HostSlots> hosts = {Slots("a", 2, 2), Slots("b", 2, c.free_on_b)};
    const PlacementFacts facts{
        .ranks = 6, .min_ranks = c.min_ranks, .group = 2, .one_group_per_host = true, .hosts = hosts};
    EXPECT_EQ(Describe(DecidePlacement(facts)), c.expected);
  }
  const std::vector<HostSlots> one = {Slots("a", 2, 2)};
  EXPECT_EQ(DecidePlacement({.ranks = 6, .min_ranks = 1, .hosts = one}).reason, "2 of at most 6 ranks on a (2)");
}

TEST(RankAssignment, KeepsRanksOnTheirHosts_IfTheirNumberChanges) {
  const HostName a("a"), b("b"), c("c");
  EXPECT_THAT(AssignRanks({{a, 2}, {c, 2}}, {a, a, b, b, c, c}, 2), ::testing::ElementsAre(a, a, c, c));
  EXPECT_THAT(AssignRanks({{a, 2}, {b, 2}}, {b, b}, 2), ::testing::ElementsAre(b, b, a, a));
}

TEST(Placement, JobOnGpus_NeedsAGpuPerRank_AndReportsIfThereAreTooFew) {
  const HostSlots hosts[] = {Slots("a", 4, 4, 0), Slots("b", 4, 4, 2)};
  EXPECT_EQ(Describe(DecidePlacement(
                {.ranks = 2, .needs_gpu = true, .hosts = hosts, .previous = {}, .allowed = {}, .excluded = {}})),
            "b=2 ");
  EXPECT_THAT(Describe(DecidePlacement(
                  {.ranks = 3, .needs_gpu = true, .hosts = hosts, .previous = {}, .allowed = {}, .excluded = {}})),
              HasSubstr("found 2 GPUs on 2 hosts"));
}

PlacementFacts Facts(uint32_t ranks, absl::Span<const HostSlots> hosts) {
  PlacementFacts facts;
  facts.ranks = ranks;
  facts.hosts = hosts;
  return facts;
}

TEST(Placement, RanksOfATensorGroup_AreOnOneHost) {
  std::vector<HostSlots> hosts = {Slots("a", 3, 3), Slots("b", 3, 3), Slots("c", 1, 1)};
  PlacementFacts facts = Facts(4, hosts);
  facts.group = 2;
  EXPECT_EQ(Describe(DecidePlacement(facts)), "a=2 b=2 ");
  facts.previous = {HostName("b"), HostName("b"), HostName("a"), HostName("a")};
  EXPECT_EQ(Describe(DecidePlacement(facts)), "a=2 b=2 ");

  hosts[0].free = 1;
  EXPECT_EQ(
      Describe(DecidePlacement(facts)),
      "waits for slots: 4 ranks in tensor groups of 2 requested, 2 of 7 slots free in whole groups on 3 hosts (a, "
      "b, c)");
  EXPECT_TRUE(CouldFit(facts));

  facts.ranks = facts.group = 4;
  facts.previous = {};
  EXPECT_EQ(
      Describe(DecidePlacement(facts)),
      "waits for slots: 4 ranks in tensor groups of 4 requested, but the ranks of a tensor group share a host, and "
      "the largest host has 3 slots; attach a host with 4 slots, or choose a smaller parallel.tensor");
  EXPECT_FALSE(CouldFit(facts)) << "although the hosts have more than 4 slots together";
}

TEST(RankAssignment, KeepsTensorGroupsTogether_AndOnTheirHosts) {
  const HostName a("a"), b("b"), c("c");

  EXPECT_EQ(AssignRanks({{a, 2}, {b, 4}}, {}, 2), (std::vector<HostName>{a, a, b, b, b, b}));
  EXPECT_EQ(AssignRanks({{a, 2}, {b, 2}}, {b, b, c, c}, 2), (std::vector<HostName>{b, b, a, a}));
}

TEST(Placement, UnusableHosts_AreSkippedAndNamed) {
  std::vector<HostSlots> hosts = {Slots("a", 2, 2), Slots("b", 2, 2), Slots("c", 2, 1), Slots("d", 2, 2)};
  hosts[0].unusable = "cordoned: disk";
  hosts[2].busy_with = "job ab12";
  PlacementFacts facts = Facts(2, hosts);
  facts.excluded = {"b"};
  EXPECT_EQ(Describe(DecidePlacement(facts)), "c=1 d=1 ");

  facts.ranks = 4;
  EXPECT_EQ(Describe(DecidePlacement(facts)),
            "waits for slots: 4 ranks requested, 3 of 4 slots free on 2 hosts (c, d); busy: c (job ab12); not used: "
            "a (cordoned: disk), b (in resources.exclude_hosts)");
  EXPECT_TRUE(CouldFit(facts)) << "the job fits once c is free";
  facts.ranks = 5;
  EXPECT_FALSE(CouldFit(facts));

  facts.ranks = 1;
  facts.excluded = {};
  facts.allowed = {"b", "z"};
  EXPECT_EQ(Describe(DecidePlacement(facts)), "b=1 ");
  facts.allowed = {"a", "z"};
  EXPECT_THAT(Describe(DecidePlacement(facts)), HasSubstr("every attached host is excluded"));
  EXPECT_THAT(Describe(DecidePlacement(facts)), HasSubstr("hosts of resources.hosts that are not attached: z"));
}

TEST(Placement, HostsOfOneSwitchAndRack_AreNextToEachOther) {
  std::vector<HostSlots> hosts = {Slots("a", 1, 1), Slots("b", 1, 1), Slots("c", 1, 1), Slots("d", 1, 1)};
  hosts[0].switch_name = hosts[2].switch_name = "s2";
  hosts[1].switch_name = hosts[3].switch_name = "s1";
  hosts[1].rack = "r2";
  hosts[3].rack = "r1";
  SortByTopology(hosts);
  EXPECT_EQ(Describe(DecidePlacement(Facts(4, hosts))), "d=1 b=1 a=1 c=1 ");
  EXPECT_EQ(Describe(DecidePlacement(Facts(2, hosts))), "d=1 b=1 ");
}

HostSlots Slots(const char* name, uint32_t slots, uint32_t free, const std::string& version) {
  HostSlots host = Slots(name, slots, free);
  host.version = version;
  return host;
}

TEST(PlacementByVersion, AJobGetsHostsOfOneVersion) {
  struct Case {
    uint32_t ranks;
    std::vector<HostSlots> hosts;
    std::vector<HostName> previous;
    std::string expected;
  };
  const HostName a("a"), b("b"), c("c");
  const Case cases[] = {
      // Hosts that would be chosen without regard to versions are preferred.
      {2, {Slots("a", 2, 2, "0.1.0"), Slots("b", 8, 8, "0.2.0")}, {}, "a=2 "},
      {2, {Slots("a", 2, 2, "0.1.0"), Slots("b", 8, 8, "0.2.0")}, {b, b}, "b=2 "},
      // Otherwise the version with the most free slots, of equals the newest.
      {3, {Slots("a", 2, 2, "0.1.0"), Slots("b", 8, 8, "0.2.0")}, {}, "b=3 "},
      {4, {Slots("a", 3, 3, "0.2.0"), Slots("b", 8, 8, "0.1.0"), Slots("c", 3, 3, "0.2.0")}, {}, "b=4 "},
      {4, {Slots("a", 3, 3, "0.10.0"), Slots("b", 6, 6, "0.9.0"), Slots("c", 3, 3, "0.10.0")}, {}, "a=3 c=1 "},
      // Ranks stay on their hosts as far as one version permits.
      {2,
       {Slots("a", 1, 1, "0.1.0"), Slots("b", 1, 1, "0.2.0"), Slots("c", 1, 1, "0.1.0"), Slots("d", 9, 9, "0.2.0")},
       {a, b},
       "b=1 d=1 "},
      {3,
       {Slots("a", 1, 1, "0.1.0"), Slots("b", 1, 1, "0.2.0"), Slots("c", 2, 2, "0.1.0"), Slots("d", 9, 9, "0.2.0")},
       {a, b, c},
       "a=1 c=2 "},
      // Hosts without a known version have one version.
      {2, {Slots("a", 1, 1, ""), Slots("b", 1, 1, "")}, {}, "a=1 b=1 "},
  };
  for (const Case& one : cases) {
    PlacementFacts facts = Facts(one.ranks, one.hosts);
    facts.one_version = true;
    facts.previous = one.previous;

    EXPECT_EQ(Describe(DecidePlacement(facts)), one.expected);
    EXPECT_TRUE(CouldFit(facts));
  }
}

TEST(PlacementByVersion, AWaitingJobNamesTheVersions_AndACommandStarts) {
  std::vector<HostSlots> hosts = {Slots("a", 1, 1, "0.1.0"), Slots("b", 1, 1, "0.2.0"), Slots("c", 1, 1, "")};
  PlacementFacts facts = Facts(2, hosts);
  facts.one_version = true;

  EXPECT_EQ(RanksThatFit(facts), 0u);
  EXPECT_FALSE(CouldFit(facts));
  EXPECT_EQ(Describe(DecidePlacement(facts)),
            "waits for slots: 2 ranks requested, 3 of 3 slots free on 3 hosts (a, b, c); all hosts of a job must have "
            "the same version of Trainyard, and these have version 0.2.0 with 1 free slot (b) and version 0.1.0 with "
            "1 free slot (a) and an unknown version with 1 free slot (c); install one version on enough hosts");

  hosts[1].slots = 2;
  EXPECT_TRUE(CouldFit(facts)) << "the job fits once b is free";
  hosts[0].unusable = hosts[2].unusable = "cordoned";
  EXPECT_EQ(
      Describe(DecidePlacement(facts)),
      "waits for slots: 2 ranks requested, 1 of 2 slots free on 1 host (b); not used: a (cordoned), c (cordoned)");

  hosts[0].unusable.clear();
  facts.one_version = false;
  EXPECT_EQ(Describe(DecidePlacement(facts)), "a=1 b=1 ");
}

}  // namespace
}  // namespace trainyard
