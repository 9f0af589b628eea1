// The loop in which all ranks load one checkpoint: whatever errors occur on whichever ranks, all ranks end with the
// same result and none waits forever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "checkpoint/read_error.h"
#include "tests/unit/checkpoint/testing.h"
#include "tests/unit/link/fake_link.h"
#include "worker/collectives/group.h"
#include "worker/trainer/restore.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Returns the result of loading the checkpoint of a step on a rank.
using Load = std::function<absl::Status(int rank, uint64_t step)>;

struct RestoreOutcome {
  absl::Status status;
  uint64_t step = 0;
  std::vector<std::string> passed_over;
  std::vector<uint64_t> tried;
};

class RestoreLoopTest : public ::testing::Test {
 protected:
  RestoreLoopTest() {
    for (uint64_t step : {100, 200, 300}) {
      SmallState state(static_cast<float>(step));
      EXPECT_TRUE(WriteCheckpoint(folder_.path(), SmallManifest(step), state.tensors(), FileSystem::Real()).ok());
    }
  }

  StartOrder Order(int world, int rank) const {
    StartOrder order;
    order.job_id = "abcdefgh";
    order.generation = 3;
    order.host = absl::StrCat("w", rank + 1);
    order.rank = rank;
    order.world_size = world;
    order.resume = true;
    order.config.steps = 1000;
    order.config.checkpoint_dir = folder_.path();
    return order;
  }

  // Restores once for each of `loads`; `after_choice` is called when rank 0 has chosen a checkpoint.
  std::vector<std::vector<RestoreOutcome>> RestoreEach(
      int world, const std::vector<Load>& loads, const std::function<void()>& after_choice = [] {}) const {
    std::vector<std::vector<RestoreOutcome>> outcomes(loads.size(),
                                                      std::vector<RestoreOutcome>(static_cast<size_t>(world)));
    FakeStore store;
    std::vector<std::thread> ranks;
    for (int r = 0; r < world; ++r) {
      ranks.emplace_back([&, r] {
        FakeLink link(&store);
        auto group = NewGroup({.world_size = world, .rank = r, .store = &link});
        ASSERT_TRUE(group.ok()) << group.status();
        for (size_t i = 0; i < loads.size(); ++i) {
          outcomes[i][static_cast<size_t>(r)] = RestoreOne(Order(world, r), loads[i], after_choice, **group);
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    return outcomes;
  }
  std::vector<RestoreOutcome> Restore(
      int world, const Load& load, const std::function<void()>& after_choice = [] {}) const {
    return RestoreEach(world, {load}, after_choice)[0];
  }

  static RestoreOutcome RestoreOne(const StartOrder& order, const Load& load, const std::function<void()>& after_choice,
                                   Communicator& communicator) {
    RestorePoint point;
    if (order.rank == 0) {
      auto choice = ChooseRestorePoint(order, {}, FileSystem::Real());
      EXPECT_TRUE(choice.ok()) << choice.status();
      point = *std::move(choice);
      after_choice();
    }
    RestoreOutcome outcome;
    auto announced = AgreeOnRestorePoint(order, point, communicator);
    EXPECT_TRUE(announced.ok()) << announced.status();
    if (!announced.ok() || !announced->has_value()) return outcome;
    auto restored = LoadRestorePoint(order, std::move(point), **announced, communicator, [&](const Checkpoint& one) {
      outcome.tried.push_back(one.manifest().step);
      return load(order.rank, one.manifest().step);
    });
    outcome.status = restored.status();
    if (!restored.ok()) return outcome;
    outcome.step = restored->step();
    outcome.passed_over = restored->passed_over;
    return outcome;
  }

  const TemporaryFolder folder_;
};

absl::Status Damage() { return absl::DataLossError("shard-00001 has another hash"); }
absl::Status DiskError() { return MarkFailedRead(absl::UnknownError("cannot read shard-00001: Input/output error")); }
absl::Status OtherModel() { return absl::FailedPreconditionError("this job needs F32 [256, 32]"); }

TEST_F(RestoreLoopTest, Newest_IsLoadedByAllAndNoOtherIsTried) {
  for (int world : {1, 3}) {
    for (const RestoreOutcome& rank : Restore(world, [](int, uint64_t) { return absl::OkStatus(); })) {
      EXPECT_TRUE(rank.status.ok()) << rank.status;
      EXPECT_EQ(rank.step, 300u);
      EXPECT_THAT(rank.tried, ElementsAre(300u));
      EXPECT_THAT(rank.passed_over, IsEmpty());
    }
  }
}

TEST_F(RestoreLoopTest, DamageSeenByOneRank_MakesAllLoadTheOlderCheckpointAndNamesTheRank) {
  for (int bad = 0; bad < 3; ++bad) {
    const auto ranks =
        Restore(3, [bad](int rank, uint64_t step) { return rank == bad && step == 300 ? Damage() : absl::OkStatus(); });
    for (const RestoreOutcome& rank : ranks) {
      EXPECT_EQ(rank.step, 200u) << rank.status;
      EXPECT_THAT(rank.tried, ElementsAre(300u, 200u));
      EXPECT_THAT(rank.passed_over, ElementsAre(absl::StrCat("checkpoint of step 300 is damaged: rank ", bad, " on w",
                                                             bad + 1, ": shard-00001 has another hash")));
    }
  }
}

TEST_F(RestoreLoopTest, Refusal_DoesNotCountAsDamage) {
  const auto ranks = Restore(3, [](int rank, uint64_t) {
    return rank == 1 ? OtherModel() : rank == 2 ? Damage() : absl::OkStatus();
  });

  EXPECT_EQ(ranks[1].status, OtherModel());
  for (int other : {0, 2}) {
    EXPECT_TRUE(absl::IsUnavailable(ranks[other].status)) << ranks[other].status;
    EXPECT_EQ(ranks[other].status.message(), absl::StrCat("rank 1 on w2: ", OtherModel().message()));
    EXPECT_THAT(ranks[other].tried, SizeIs(1));
  }
}

// The checkpoint may be good, so no rank loads an older one: the job runs on another host.
TEST_F(RestoreLoopTest, FailedReadOfOneRank_FailsAllRanks_AndNoOlderCheckpointIsLoaded) {
  const auto ranks = Restore(3, [](int rank, uint64_t) {
    return rank == 1 ? DiskError() : rank == 2 ? Damage() : absl::OkStatus();
  });

  EXPECT_TRUE(IsFailedRead(ranks[1].status)) << ranks[1].status;
  for (int other : {0, 2}) {
    EXPECT_TRUE(absl::IsUnavailable(ranks[other].status)) << ranks[other].status;
    EXPECT_EQ(ranks[other].status.message(), absl::StrCat("rank 1 on w2: ", DiskError().message()));
    EXPECT_THAT(ranks[other].tried, ElementsAre(300u));
  }
}

TEST_F(RestoreLoopTest, FileThatOtherHostsCannotRead_IsNoDamage) {
  const auto ranks = Restore(
      2, [](int, uint64_t) { return absl::OkStatus(); },
      [&] { MakeUnreadable(folder_ / "step-00000300/shard-00000.safetensors"); });

  EXPECT_TRUE(IsFailedRead(ranks[1].status)) << ranks[1].status;
  EXPECT_TRUE(absl::IsUnavailable(ranks[0].status)) << ranks[0].status;
}

TEST_F(RestoreLoopTest, JobWithACheckpointThatThisHostFailsToRead_MayResumeOnAnotherHost) {
  MakeUnreadable(folder_ / "step-00000300/shard-00000.safetensors");
  for (const bool has_recorded : {true, false}) {
    StartOrder order = Order(1, 0);
    if (has_recorded) order.restart_step = 300;

    const absl::Status elsewhere = ChooseRestorePoint(order, {}, FileSystem::Real()).status();

    EXPECT_TRUE(IsFailedRead(elsewhere) && IsCheckpointMissing(elsewhere)) << elsewhere;
  }
}

TEST_F(RestoreLoopTest, NoCheckpointLeft_RankZeroReportsWhy) {
  const auto ranks = Restore(3, [](int rank, uint64_t) { return rank == 2 ? Damage() : absl::OkStatus(); });

  EXPECT_TRUE(absl::IsDataLoss(ranks[0].status));
  EXPECT_THAT(std::string(ranks[0].status.message()),
              AllOf(HasSubstr("none of the 3 checkpoints"), HasSubstr("rank 2 on w3: shard-00001 has")));
  for (int other : {1, 2}) EXPECT_TRUE(absl::IsUnavailable(ranks[other].status)) << ranks[other].status;
}

TEST_F(RestoreLoopTest, FileRemovedAfterTheChoice_MakesAllLoadTheOlderCheckpoint) {
  const auto ranks = Restore(
      3, [](int, uint64_t) { return absl::OkStatus(); },
      [&] { std::filesystem::remove(folder_ / "step-00000300/shard-00000.safetensors"); });

  for (const RestoreOutcome& rank : ranks) {
    EXPECT_EQ(rank.step, 200u) << rank.status;
    ASSERT_THAT(rank.passed_over, SizeIs(1));
    EXPECT_THAT(rank.passed_over[0], AllOf(HasSubstr("rank 1 on w2: "), HasSubstr("rank 2 on w3: "),
                                           HasSubstr("shard-00000.safetensors"), HasSubstr("it is missing")));
  }
}

TEST_F(RestoreLoopTest, AnotherCheckpointOfThatName_IsNotUsed) {
  const auto ranks = Restore(
      2, [](int, uint64_t) { return absl::OkStatus(); },
      [&] {
        SmallState state(7);
        ASSERT_TRUE(WriteCheckpoint(folder_.path(), SmallManifest(300), state.tensors(), FileSystem::Real()).ok());
      });

  for (const RestoreOutcome& rank : ranks) {
    EXPECT_EQ(rank.step, 200u) << rank.status;
    ASSERT_THAT(rank.passed_over, SizeIs(1));
    EXPECT_THAT(rank.passed_over[0], AllOf(HasSubstr("rank 1 on w2: "), HasSubstr("rank 0 reads ")));
  }
}

// The trainers of two hosts are of an earlier version than the one that wrote the checkpoint.
TEST_F(RestoreLoopTest, CheckpointOfALaterVersion_IsRefusedAndNoOlderOneIsLoaded) {
  const auto ranks = Restore(
      3, [](int, uint64_t) { return absl::OkStatus(); }, [&] { MakeLaterVersion(folder_ / "step-00000300"); });

  EXPECT_EQ(ranks[1].status.code(), absl::StatusCode::kUnimplemented) << ranks[1].status;
  EXPECT_FALSE(IsCheckpointMissing(ranks[1].status));
  EXPECT_TRUE(absl::IsUnavailable(ranks[0].status)) << ranks[0].status;
  EXPECT_THAT(std::string(ranks[0].status.message()),
              AllOf(HasSubstr("rank 1 on w2: "), HasSubstr("its version is 99")));
  for (const RestoreOutcome& rank : ranks) EXPECT_EQ(rank.step, 0u);
}

TEST_F(RestoreLoopTest, JobWithARecordedCheckpointOfALaterVersion_MayResumeOnAnotherHost) {
  MakeLaterVersion(folder_ / "step-00000300");
  StartOrder order = Order(1, 0);

  const absl::Status refused = ChooseRestorePoint(order, {}, FileSystem::Real()).status();
  order.restart_step = 300;
  const absl::Status elsewhere = ChooseRestorePoint(order, {}, FileSystem::Real()).status();

  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << refused;
  EXPECT_FALSE(IsCheckpointMissing(refused));
  EXPECT_TRUE(IsCheckpointMissing(elsewhere)) << elsewhere;
}

// The expected result: the newest checkpoint that all can load, unless a rank refuses one that is newer.
TEST_F(RestoreLoopTest, AnyErrors_EndAllRanksIdentically) {
  constexpr int kCases = 200, kWorld = 4;
  std::mt19937 random(1);
  struct LoadErrors {
    std::map<std::pair<int, uint64_t>, int> by_rank_and_step;  // 0 loaded, 1 damaged, 2 refused
  };
  std::vector<LoadErrors> all(kCases);
  std::vector<Load> loads;
  for (LoadErrors& errors : all) {
    for (int rank = 0; rank < kWorld; ++rank) {
      for (uint64_t step : {100, 200, 300}) {
        const int drawn = static_cast<int>(random() % 16);
        errors.by_rank_and_step[{rank, step}] = drawn == 0 ? 2 : drawn < 4 ? 1 : 0;
      }
    }
    loads.push_back([&errors](int rank, uint64_t step) {
      const int error = errors.by_rank_and_step.at({rank, step});
      return error == 2 ? OtherModel() : error == 1 ? Damage() : absl::OkStatus();
    });
  }

  const auto outcomes = RestoreEach(kWorld, loads);

  std::map<int, int> occurrences;
  for (int i = 0; i < kCases; ++i) {
    int kind = 1;
    uint64_t step = 400;
    while (kind == 1 && (step -= 100) > 0) {
      kind = 0;
      for (int rank = 0; rank < kWorld; ++rank) kind = std::max(kind, all[i].by_rank_and_step.at({rank, step}));
    }
    ++occurrences[kind];
    for (int rank = 0; rank < kWorld; ++rank) {
      const RestoreOutcome& found = outcomes[i][rank];
      SCOPED_TRACE(absl::StrCat("case ", i, " rank ", rank, ": ", found.status.ToString()));
      EXPECT_EQ(found.status.ok(), kind == 0);
      EXPECT_EQ(found.step, kind == 0 ? step : 0);
      EXPECT_EQ(found.passed_over, outcomes[i][0].passed_over);
      EXPECT_EQ(found.tried, outcomes[i][0].tried);
    }
  }
  EXPECT_THAT(occurrences, SizeIs(3)) << "each of the three outcomes must occur";
}

}  // namespace
}  // namespace trainyard
