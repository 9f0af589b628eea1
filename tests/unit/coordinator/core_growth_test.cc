// Properties of elastic commands in the coordinator's core, whatever hosts join, are lost and are cordoned. A restart
// for growth starts a larger group and does not count against recovery.max_restarts. No group has fewer ranks than
// command.min_ranks or more than resources.ranks. Once the hosts no longer change, the group reaches its largest size
// and keeps it.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

constexpr uint32_t kLargest = 8, kSmallest = 2;

struct RandomCluster {
  explicit RandomCluster(uint32_t seed) : random(seed) {
    for (uint32_t i = 0; i < 4; ++i) {
      hosts.push_back(std::make_unique<FakeHost>(harness, absl::StrCat("w", i + 1), 1 + Below(4), 11 * (i + 1)));
      for (uint32_t gpu = Below(4); gpu > 0; --gpu) hosts.back()->inventory.add_gpus();
    }
    hosts[0]->Attach();
    v1::JobSpec spec;
    spec.set_name("command");
    spec.mutable_command()->add_argv("true");
    spec.mutable_command()->set_workdir("/");
    spec.mutable_command()->set_min_ranks(kSmallest);
    spec.mutable_command()->set_grow_after_s(10);
    if (Below(2) == 0) spec.mutable_command()->set_ranks_per_host(2);
    if (Below(3) == 0) spec.mutable_resources()->add_exclude_hosts("w3");
    if (Below(3) == 0) spec.mutable_resources()->set_device(v1::DEVICE_CUDA);
    spec.mutable_resources()->set_ranks(kLargest);
    spec.mutable_recovery()->set_max_restarts(1000);
    harness.Submit(spec, kJob);
  }

  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random() % bound); }
  bool IsAttached(const FakeHost& host) const {
    return std::count(harness.alive.begin(), harness.alive.end(), host.session) > 0;
  }
  // Returns whether something happened that may take slots away.
  bool Disturb() {
    FakeHost& host = *hosts[Below(4)];
    const bool attached = IsAttached(host);
    if (!attached && Below(2) == 0) host.Attach();
    const bool detach = attached && Below(6) == 0, cordon = Below(10) == 0;
    if (detach) host.Detach();
    if (cordon) harness.SetHostState(host.name, v1::SetHostRequest::ACTION_CORDON);
    if (Below(6) == 0) harness.SetHostState(host.name, v1::SetHostRequest::ACTION_UNCORDON);
    return detach || cordon;
  }
  // The number of ranks of the largest group that all hosts together can run; 0: there are too few slots for any group.
  uint32_t LargestGroup() {
    const v1::JobSpec spec = harness.Get(kJob).spec();
    const uint32_t per_host = spec.command().ranks_per_host();
    uint32_t ranks = 0;
    for (const auto& host : hosts) {
      uint32_t slots = host->slots;
      if (spec.resources().device() == v1::DEVICE_CUDA) {
        slots = std::min(slots, static_cast<uint32_t>(host->inventory.gpus_size()));
      }
      if (per_host > 0) slots = slots >= per_host ? per_host : 0;
      if (spec.resources().exclude_hosts_size() == 0 || host->name != spec.resources().exclude_hosts(0)) ranks += slots;
    }
    return ranks < kSmallest ? 0 : std::min(ranks, kLargest);
  }
  void Settle(int steps) {
    for (int step = 0; step < steps; ++step) {
      for (auto& host : hosts) {
        harness.SetHostState(host->name, v1::SetHostRequest::ACTION_UNCORDON);
        if (!IsAttached(*host)) host->Attach();
      }
      harness.Advance(absl::Seconds(5));
      Apply();
    }
  }
  void Apply() {
    for (int round = 0; round < 2; ++round) {
      for (auto& host : hosts) {
        if (IsAttached(*host)) host->Apply();
      }
    }
  }

  std::mt19937 random;
  Harness harness;
  std::vector<std::unique_ptr<FakeHost>> hosts;
};

TEST(GrowthOfElasticCommands, AlwaysStartsALargerGroup_AndUsesNoRestart) {
  int grown = 0, running = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    RandomCluster cluster(seed);
    v1::Job before;  // the job when its group was ended in order to grow; generation 0: no group was ended
    for (int step = 0; step < 60; ++step) {
      if (cluster.Disturb()) before.Clear();
      cluster.harness.Advance(absl::Seconds(5));
      const v1::Job now = cluster.harness.Get(kJob);
      if (now.state() == v1::JOB_STATE_STOPPING && absl::StartsWith(now.reason(), "grows from")) before = now;
      cluster.Apply();

      const v1::Job after = cluster.harness.Get(kJob);
      const int ranks = after.ranks_size();
      ASSERT_TRUE(ranks == 0 || (ranks >= int{kSmallest} && ranks <= int{kLargest})) << "seed " << seed;
      running += after.state() == v1::JOB_STATE_RUNNING;
      if (before.generation() == 0 || after.generation() == before.generation()) continue;
      ++grown;
      EXPECT_GT(ranks, before.ranks_size()) << "seed " << seed << ", step " << step << ": " << after.reason();
      EXPECT_EQ(after.restarts(), before.restarts()) << "seed " << seed << ", step " << step;
      before.Clear();
    }
  }
  EXPECT_GT(grown, 20);
  EXPECT_GT(running, 1000);
}

TEST(GrowthOfElasticCommands, EndsAtTheLargestGroup_OnceTheHostsStay) {
  int running = 0;
  for (uint32_t seed = 101; seed <= 140; ++seed) {
    RandomCluster cluster(seed);
    for (int step = 0; step < 20; ++step) {
      cluster.Disturb();
      cluster.harness.Advance(absl::Seconds(5));
      cluster.Apply();
    }

    cluster.Settle(20);
    const v1::Job settled = cluster.harness.Get(kJob);
    cluster.Settle(20);

    const v1::Job job = cluster.harness.Get(kJob);
    const uint32_t largest = cluster.LargestGroup();
    EXPECT_EQ(job.state(), largest > 0 ? v1::JOB_STATE_RUNNING : v1::JOB_STATE_QUEUED)
        << "seed " << seed << ": " << job.reason();
    EXPECT_EQ(static_cast<uint32_t>(job.ranks_size()), largest) << "seed " << seed;
    EXPECT_EQ(job.generation(), settled.generation()) << "seed " << seed << ": the group is started again";
    running += largest > 0;
  }
  EXPECT_GT(running, 20);
}

}  // namespace
}  // namespace trainyard
