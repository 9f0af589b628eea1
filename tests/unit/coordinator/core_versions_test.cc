// Hosts with different versions of Trainyard, as during an upgrade.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

// Two hosts with one slot each; the second one has the new version.
struct MixedHosts {
  MixedHosts() : first(harness, "w1", 1, 11), second(harness, "w2", 1, 22) {
    first.inventory.set_version("0.1.0");
    second.inventory.set_version("0.2.0");
    first.Attach();
    second.Attach();
  }
  // A new daemon with this version replaces that of the host.
  void Upgrade(FakeHost& host, const std::string& version) {
    host.inventory.set_version(version);
    host.ReplaceDaemon();
  }
  void Run() {
    const uint64_t generation = harness.Get(kJob).generation();
    for (FakeHost* host : {&first, &second}) {
      const v1::TrainerKey key = Key(kJob, generation, host == &second ? 1 : 0);
      host->Apply();
      host->Register(key);
      host->Ready(key);
    }
    ASSERT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING) << harness.Get(kJob).reason();
  }

  Harness harness;
  FakeHost first, second;
};

TEST(CoreVersions, AJobWaitsForHostsOfOneVersion_AndContinuesIfOneOfThemIsUpgraded) {
  MixedHosts two;
  two.harness.Submit(MakeSpec(2), kJob);

  EXPECT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(two.harness.Get(kJob).reason(),
              HasSubstr("all hosts of a job must have the same version of Trainyard, and these have version 0.2.0 with "
                        "1 free slot (w2) and version 0.1.0 with 1 free slot (w1); install one version on enough "
                        "hosts"));

  two.Upgrade(two.first, "0.2.0");
  two.Run();
  two.Upgrade(two.second, "0.3.0");
  two.harness.Advance(absl::Seconds(10));

  EXPECT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(two.harness.Get(kJob).generation(), 1u);
}

TEST(CoreVersions, AGroupWhoseLastRanksWouldStartWithAnotherVersion_IsFormedAgain) {
  MixedHosts two;
  two.Upgrade(two.first, "0.2.0");
  two.harness.Submit(MakeSpec(2), kJob);
  two.first.Apply();
  two.Upgrade(two.second, "0.3.0");

  EXPECT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_STOPPING);
  EXPECT_THAT(two.harness.Get(kJob).reason(), HasSubstr("host w2 came back with version 0.3.0 of Trainyard, and host "
                                                        "w1 has version 0.2.0"));
  two.first.Apply();
  two.second.Apply();
  EXPECT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(two.harness.Get(kJob).reason(), HasSubstr("the same version of Trainyard"));

  two.Upgrade(two.first, "0.3.0");
  two.Run();
  EXPECT_EQ(two.harness.Get(kJob).generation(), 2u);
  EXPECT_EQ(two.harness.Get(kJob).restarts(), 0u);
}

TEST(CoreVersions, AJobThatCannotStartOnAHost_WaitsForTheEndOfTheUpgrade) {
  Harness harness;
  FakeHost first(harness, "w1", 1, 11), second(harness, "w2", 1, 22), third(harness, "w3", 1, 33);
  first.inventory.set_version("0.1.0");
  second.inventory.set_version("0.1.0");
  third.inventory.set_version("0.2.0");
  for (FakeHost* host : {&first, &second, &third}) host->Attach();
  harness.Submit(MakeSpec(2), kJob);
  v1::Fact fact;
  fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_START_FAILED);
  fact.mutable_exited()->set_message("the trainer is being replaced");
  first.ReportFact(Key(kJob, 1, 0), fact);
  second.Apply();
  harness.Advance(absl::Seconds(30));

  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RECOVERING) << harness.Get(kJob).reason();

  first.ReplaceDaemon();
  EXPECT_EQ(harness.Get(kJob).generation(), 2u) << harness.Get(kJob).reason();
}

TEST(CoreVersions, ACommandStartsOnHostsOfDifferentVersions) {
  MixedHosts two;
  two.harness.Submit(CommandSpec(2), kJob);

  EXPECT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_PLACED) << two.harness.Get(kJob).reason();
}

}  // namespace
}  // namespace trainyard
