// Restarts on hosts that have other data: a host with other data is named and left, and the job is refused only if no
// host has the data of its checkpoint any more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/unit/trainer/strategies_fixture.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Where a rank runs, and the file that it reads there.
struct Place {
  std::string host;
  std::string file;
};

class OtherDataTest : public StrategiesTest {
 protected:
  std::string Write(const std::string& name, int lines, int seed, bool as_json) {
    std::ofstream file(folder_ / name);
    for (int i = 0; i < lines; ++i) {
      const std::string text = absl::StrCat("line ", (seed + i * 7919) % 997, " of ", seed);
      as_json ? file << "{\"text\": \"" << text << "\"}\n" : file << text << "\n";
    }
    return folder_ / name;
  }

  // One rank in each place.
  std::unique_ptr<Ranks> RunAt(const std::vector<Place>& places, bool as_json, uint64_t generation) {
    const int count = static_cast<int>(places.size());
    return RunEach(count, [&](int rank) {
      const Place& place = places[static_cast<size_t>(rank)];
      StartOrder order = Order(absl::StrCat("run-", as_json), {"ddp", count}, generation == 1 ? 2 : 4);
      order.local_world_size = 1;
      order.host = place.host;
      order.generation = generation;
      if (generation > 1) order.restart_step = 2;
      order.config.evaluate_every = 0;
      order.config.data = {.text = {}, .validation = 0};
      (as_json ? order.config.data.jsonl : order.config.data.text) = std::vector<std::string>{place.file};
      return order;
    });
  }

  // Expects that exactly the rank `blamed` reports that its host cannot resume the job, and returns why.
  static std::string ReasonOf(const Ranks& ranks, size_t blamed) {
    for (size_t r = 0; r < ranks.links.size(); ++r) {
      SCOPED_TRACE(absl::StrCat("rank ", r, ": ", ranks.logs[r].str()));
      EXPECT_EQ(ranks.codes[r], r == blamed ? kExitFailed : kExitAborted);
      EXPECT_THAT(ranks.links[r]->FactsOf<RefusedFact>(), SizeIs(r == blamed ? 1u : 0u));
    }
    const auto facts = ranks.links[blamed]->FactsOf<RefusedFact>();
    if (facts.empty()) return "";
    EXPECT_TRUE(facts[0].checkpoint_missing);
    return facts[0].message;
  }
};

TEST_F(OtherDataTest, AHostWithOtherDataAtARestart_IsNamed_WhicheverRankItRuns) {
  for (const bool as_json : {false, true}) {
    SCOPED_TRACE(as_json);
    const std::string text = Write("text", 300, 1, as_json), other = Write("other", 200, 2, as_json);
    ASSERT_EQ(RunAt({{"w1", text}, {"w2", text}}, as_json, 1)->codes[0], kExitDone);

    const auto replaced = RunAt({{"w1", text}, {"w3", other}}, as_json, 2);
    const auto first_replaced = RunAt({{"w3", other}, {"w2", text}}, as_json, 3);

    EXPECT_THAT(ReasonOf(*replaced, 1),
                AllOf(HasSubstr("host w3 has other data than the checkpoint of the job (content hash "),
                      HasSubstr("give all hosts the same files")));
    EXPECT_THAT(replaced->logs[0].str(), HasSubstr("the data of rank 1 on w3 is not that of the checkpoint"));
    EXPECT_THAT(ReasonOf(*first_replaced, 0), AllOf(HasSubstr("host w3 has other data"), HasSubstr("/other is new")));
    EXPECT_EQ(RunAt({{"w1", text}, {"w2", text}}, as_json, 4)->codes[0], kExitDone) << "the job is not lost";
  }
}

TEST_F(OtherDataTest, AJobWhoseDataHasChangedOnAllHosts_IsRefused) {
  for (const bool as_json : {false, true}) {
    SCOPED_TRACE(as_json);
    const std::string text = Write("text", 300, 1, as_json);
    ASSERT_EQ(RunAt({{"w1", text}, {"w2", text}}, as_json, 1)->codes[0], kExitDone);
    Write("text", 300, 2, as_json);

    const auto changed = RunAt({{"w1", text}, {"w2", text}}, as_json, 2);

    EXPECT_EQ(changed->codes[0], kExitRefused) << changed->logs[0].str();
    EXPECT_EQ(changed->codes[1], kExitAborted) << changed->logs[1].str();
    const auto facts = changed->links[0]->FactsOf<RefusedFact>();
    ASSERT_THAT(facts, SizeIs(1));
    EXPECT_FALSE(facts[0].checkpoint_missing);
    EXPECT_THAT(facts[0].message, HasSubstr("train.data is not what the checkpoint was made with"));
  }
}

TEST_F(OtherDataTest, AJobOnOneHost_WaitsForAnotherHost_IfTheNewOneHasOtherData) {
  const std::string text = Write("text", 300, 1, /*as_json=*/true), broken = folder_ / "broken";
  std::ofstream(broken) << "{\"text\": \"a line\"}\nno JSON\n";
  ASSERT_EQ(RunAt({{"w1", text}}, /*as_json=*/true, 1)->codes[0], kExitDone);

  const auto moved = RunAt({{"w9", broken}}, /*as_json=*/true, 2);

  EXPECT_THAT(ReasonOf(*moved, 0), HasSubstr("host w9 has other data than the checkpoint of the job"));
  EXPECT_EQ(RunAt({{"w1", text}}, /*as_json=*/true, 3)->codes[0], kExitDone);
}

TEST_F(OtherDataTest, OtherDataInTheFirstGeneration_IsRefused) {
  const std::string text = Write("text", 300, 1, /*as_json=*/true), other = Write("other", 200, 2, /*as_json=*/true);

  const auto first = RunAt({{"w1", text}, {"w2", other}}, /*as_json=*/true, 1);

  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(first->codes[r], kExitRefused) << first->logs[r].str();
    EXPECT_FALSE(first->links[r]->FactsOf<RefusedFact>().at(0).checkpoint_missing);
  }
}

}  // namespace
}  // namespace trainyard
