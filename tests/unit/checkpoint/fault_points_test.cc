#include "checkpoint/fault_points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/catalog.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Records the actions instead of applying them to the process.
struct Recorder {
  std::vector<std::string> actions;
  std::function<void()> on_sleep = [] {};
  FaultEffects Effects() {
    return {.kill = [this] { actions.push_back("kill"); },
            .stop = [this] { actions.push_back("stop"); },
            .sleep =
                [this](absl::Duration duration) {
                  actions.push_back(absl::FormatDuration(duration));
                  on_sleep();
                }};
  }
  FaultPoints Points(absl::string_view rules, uint64_t rank = 0, uint64_t generation = 1) {
    auto parsed = ParseFaultRules(rules);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return FaultPoints(*parsed, rank, generation, Effects());
  }
};

TEST(FaultPointsTest, Parse_ListsEveryProblem) {
  auto rules = ParseFaultRules("point=sync:shrad:before,do=kill;rank=x,do=slow:fast;colour=red,point=grant");

  ASSERT_TRUE(absl::IsInvalidArgument(rules.status()));
  for (const char* problem : {"point=sync:shrad:before: expected", "rank=x: expected a number of at least 0",
                              "do=slow:fast: expected a duration", "point= is missing", "'colour' is not a key",
                              "do= is missing", "TRAINYARD_FAULT_POINTS"}) {
    EXPECT_THAT(std::string(rules.status().message()), HasSubstr(problem));
  }
}

TEST(FaultPointsTest, Parse_ReadsRulesFromAFile_AndNamesAMissingOne) {
  TemporaryFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "rules", "point=grant,do=kill\n\n point=commit , do=stop,nth=3\n").ok());

  auto rules = ParseFaultRules("@" + (folder / "rules"));
  auto missing = ParseFaultRules("@" + (folder / "none"));

  ASSERT_TRUE(rules.ok()) << rules.status();
  ASSERT_EQ(rules->size(), 2u);
  EXPECT_EQ((*rules)[0].point, "grant");
  EXPECT_EQ((*rules)[1].nth, 3u);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(folder / "none"));
}

TEST(FaultPointsTest, Pass_ActsOnlyAtItsPointRankGenerationAndCount) {
  Recorder recorder;
  FaultPoints points = recorder.Points(
      "rank=1,generation=2,point=sync:*:before,nth=2,do=kill;rank=0,point=sync:*:before,do=stop;"
      "generation=1,point=sync:*:before,do=stop",
      /*rank=*/1, /*generation=*/2);

  for (const char* point : {"sync:shard:before", "sync:shard:after", "append:shard:before", "sync", "grant"}) {
    EXPECT_TRUE(points.Pass(point, "do").ok());
  }
  EXPECT_THAT(recorder.actions, IsEmpty());
  EXPECT_TRUE(points.Pass("sync:manifest:before", "do").ok());
  EXPECT_TRUE(points.Pass("sync:manifest:before", "do").ok());

  EXPECT_THAT(recorder.actions, ElementsAre("kill"));
}

TEST(FaultPointsTest, Pass_OfARuleWithOnce_ActsOnceInAllProcesses) {
  TemporaryFolder folder;
  Recorder recorder;
  const std::string rule = absl::StrCat("point=grant,do=kill,once=", folder / "fired");
  FaultPoints first = recorder.Points(rule), second = recorder.Points(rule);

  EXPECT_TRUE(first.Pass("grant", "do").ok());
  EXPECT_TRUE(first.Pass("grant", "do").ok());
  EXPECT_TRUE(second.Pass("grant", "do").ok());

  EXPECT_THAT(recorder.actions, ElementsAre("kill"));
  EXPECT_TRUE(FileExists(folder / "fired"));
}

TEST(FaultPointsTest, Pass_OfAWaitRule_ReportsThatItWaits_AndContinuesOnceTheFileExists) {
  TemporaryFolder folder;
  Recorder recorder;
  const std::string file = folder / "go";
  recorder.on_sleep = [&] {
    EXPECT_TRUE(FileExists(file + ".reached"));
    if (recorder.actions.size() == 3) {
      EXPECT_TRUE(WriteFileAtomically(file, "").ok());
    }
  };
  FaultPoints points = recorder.Points(absl::StrCat("point=commit,do=wait:", file));

  EXPECT_TRUE(points.Pass("commit", "do").ok());

  EXPECT_EQ(recorder.actions.size(), 3u);
}

// Every save passes the points of the list at the end of this test, so crash tests may name any of them.
TEST(FaultPointsTest, FileSystem_HasAPointForEveryCallOfASave) {
  TemporaryFolder folder;
  Recorder recorder;
  std::vector<std::string> all_points;
  std::string rules;
  for (const char* call : {"create", "append", "sync", "rename", "remove"}) {
    for (const char* what : {"shard", "part", "manifest", "partial", "step", "run", "other"}) {
      for (const char* phase : {"before", "after"}) {
        const std::string point = absl::StrCat(call, ":", what, ":", phase);
        absl::StrAppend(&rules, "point=", point, ",do=slow:", all_points.size() + 1, "s;");
        all_points.push_back(point);
      }
    }
  }
  FaultPoints points = recorder.Points(rules);
  auto disk = NewFaultyFileSystem(FileSystem::Real(), points);
  SmallState state(1);

  ASSERT_TRUE(WriteCheckpoint(folder.path(), SmallManifest(7), state.tensors(), *disk).ok());

  std::vector<std::string> passed;
  for (const std::string& act : recorder.actions) {
    absl::Duration index;
    ASSERT_TRUE(absl::ParseDuration(act, &index));
    const std::string& point = all_points[static_cast<size_t>(absl::ToInt64Seconds(index)) - 1];
    if (passed.empty() || passed.back() != point) passed.push_back(point);
  }
  for (const char* point : {"create:partial:before", "create:shard:after", "append:shard:before", "sync:shard:after",
                            "create:manifest:before", "sync:manifest:after", "sync:partial:before",
                            "rename:partial:before", "rename:partial:after", "sync:run:before", "sync:run:after"}) {
    EXPECT_THAT(passed, ::testing::Contains(point));
  }
}

TEST(FaultPointsTest, FileSystem_FailsAsTheKernelWould_AndTheSaveLeavesNothing) {
  for (const char* point :
       {"create:partial:before", "create:shard:after", "append:shard:before", "append:manifest:after",
        "sync:shard:before", "sync:manifest:before", "sync:partial:after", "rename:partial:before"}) {
    for (const char* act : {"enospc", "eio"}) {
      TemporaryFolder folder;
      Recorder recorder;
      FaultPoints points = recorder.Points(absl::StrCat("point=", point, ",do=", act));
      auto disk = NewFaultyFileSystem(FileSystem::Real(), points);
      SmallState state(1);

      absl::Status failed = WriteCheckpoint(folder.path(), SmallManifest(7), state.tensors(), *disk).status();

      EXPECT_EQ(failed.code(),
                act == std::string("enospc") ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnknown)
          << point << ": " << failed;
      EXPECT_THAT(std::string(failed.message()), AllOf(HasSubstr(point), HasSubstr(folder.path())));
      EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << point << " " << act;
    }
  }
}

TEST(FaultPointsTest, Install_WithoutRulesChangesNothing_WithInvalidRulesFails) {
  EXPECT_EQ(*InstallFaultPoints(nullptr, 0, 1, FileSystem::Real()), &FileSystem::Real());
  EXPECT_TRUE(absl::IsInvalidArgument(InstallFaultPoints("point=x", 0, 1, FileSystem::Real()).status()));
  EXPECT_TRUE(FaultPoint("grant").ok());
}

}  // namespace
}  // namespace trainyard
