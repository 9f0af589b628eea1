// Jobs whose hosts may have different data (train.data.uneven: join): the order of the samples after a resume on other
// hosts, and the tokenizers of the hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "absl/strings/str_split.h"
#include "checkpoint/catalog.h"
#include "common/files.h"
#include "tests/unit/data/small_tokenizer.h"
#include "tests/unit/trainer/strategies_fixture.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class UnevenDataTest : public StrategiesTest {
 protected:
  UnevenDataTest() : short_(WriteStart("short.txt", 1601)), long_(WriteStart("long.txt", 4801)) {}

  // The first bytes of the text. A sample has 16 bytes, and its last target is the byte after them.
  std::string WriteStart(const std::string& name, size_t bytes) {
    const std::string text = *ReadFile(folder_ / "text.txt");
    EXPECT_TRUE(WriteFileAtomically(folder_ / name, text.substr(0, bytes)).ok());
    return folder_ / name;
  }

  StartOrder JoiningOrder(const std::string& run, uint64_t steps) {
    StartOrder order = Order(run, {"zero2", 2}, steps);
    order.config.data.validation = 0;
    order.config.data.joins_uneven = true;
    order.config.evaluate_every = 0;
    return order;
  }

  // Runs two ranks, whose data `change` makes different.
  static std::unique_ptr<Ranks> RunTwo(const StartOrder& order,
                                       const std::function<void(size_t rank, TrainConfig::Data& data)>& change) {
    return RunEach(2, [&](int rank) {
      StartOrder own = order;
      change(static_cast<size_t>(rank), own.config.data);
      return own;
    });
  }

  // Each rank has a file of its own.
  static std::unique_ptr<Ranks> RunOn(const StartOrder& order, const std::vector<std::string>& files) {
    return RunTwo(order, [&files](size_t rank, TrainConfig::Data& data) { data.text = {files[rank]}; });
  }

  // Makes the first three steps of a run with `files`.
  void Begin(const std::string& run, const std::vector<std::string>& files) {
    EXPECT_THAT(RunOn(JoiningOrder(run, 3), files)->codes, ElementsAre(kExitDone, kExitDone));
  }

  // The order with which the coordinator restarts that run.
  StartOrder RestartOrder(const std::string& run) {
    StartOrder order = JoiningOrder(run, 6);
    order.generation = 2;
    order.restart_step = 3;
    return order;
  }

  const std::string short_, long_;
};

std::string MessageOf(const FakeLink& link) {
  const auto facts = link.FactsOf<RefusedFact>();
  return facts.empty() ? "" : facts[0].message;
}

TEST_F(UnevenDataTest, ARestartOnHostsWithMoreData_ContinuesTheOrderOfTheSamples) {
  const auto whole = RunOn(JoiningOrder("whole", 6), {short_, short_});
  Begin("run", {short_, long_});

  const auto restarted = RunOn(RestartOrder("run"), {long_, long_});

  ASSERT_THAT(restarted->codes, ElementsAre(kExitDone, kExitDone)) << restarted->logs[0].str();
  ASSERT_THAT(whole->links[0]->steps(), SizeIs(6));
  ASSERT_THAT(restarted->links[0]->steps(), SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    ExpectNear(restarted->links[0]->steps()[i].loss, whole->links[0]->steps()[i + 3].loss);
  }
  const std::vector<std::string> parts =
      absl::StrSplit(restarted->logs[0].str(), "train.data.uneven is join, so the job continues");
  EXPECT_THAT(parts, SizeIs(2)) << "the warning comes once: " << restarted->logs[0].str();
  EXPECT_THAT(restarted->logs[0].str(), HasSubstr("the run continues with the 100 samples to train on"));
  const auto saved = FindCheckpoint(folder_ / "run");
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->checkpoint->manifest().step, 6u);
  EXPECT_THAT(saved->checkpoint->manifest().data.samples, ElementsAre(100)) << "the next restart needs them, too";
}

TEST_F(UnevenDataTest, ARestartOnAHostWithLessData_MovesToAnotherHost) {
  Begin("run", {long_, long_});

  const auto restarted = RunOn(RestartOrder("run"), {long_, short_});

  EXPECT_THAT(restarted->codes, ElementsAre(kExitAborted, kExitFailed));
  ASSERT_THAT(restarted->links[1]->FactsOf<RefusedFact>(), SizeIs(1));
  EXPECT_TRUE(restarted->links[1]->FactsOf<RefusedFact>()[0].checkpoint_missing);
  EXPECT_THAT(MessageOf(*restarted->links[1]), HasSubstr("the checkpoint was made with 300 samples to train on "
                                                         "(train.data.text), but host w1 has 100, so samples would"));
  EXPECT_THAT(restarted->links[0]->FactsOf<RefusedFact>(), SizeIs(0));
}

TEST_F(UnevenDataTest, AResumeByTheUserWithLessData_IsRefused_UnlessTheDataMayChange) {
  Begin("run", {long_, long_});
  StartOrder order = JoiningOrder("run", 6);
  order.job_id = "bcdefghi";
  order.resume = true;

  const auto refused = RunOn(order, {long_, short_});
  order.config.allow_data_change = true;
  const auto allowed = RunOn(order, {long_, short_});

  EXPECT_EQ(refused->codes[1], kExitRefused);
  EXPECT_THAT(MessageOf(*refused->links[1]), HasSubstr("--allow-data-change"));
  ASSERT_THAT(allowed->codes, ElementsAre(kExitDone, kExitDone)) << allowed->logs[0].str();
  EXPECT_THAT(allowed->logs[0].str(), HasSubstr("so they come in another order"));
  EXPECT_THAT(FindCheckpoint(folder_ / "run")->checkpoint->manifest().data.samples, ElementsAre(100));
}

TEST_F(UnevenDataTest, HostsWithOtherTokenizers_AreRefused) {
  WriteSmallTokenizer(folder_ / "one");
  WriteSmallTokenizer(folder_ / "other");
  std::ofstream(folder_ / "other/tokenizer.json", std::ios::app) << "\n";
  StartOrder order = JoiningOrder("run", 2);
  order.config.model.vocabulary = SmallTokenizer::kVocabulary;

  const auto refused = RunTwo(order, [this](size_t rank, TrainConfig::Data& data) {
    data.tokenizer_path = folder_ / (rank == 0 ? "one" : "other");
  });

  EXPECT_THAT(refused->codes, ElementsAre(kExitRefused, kExitRefused)) << refused->logs[0].str();
  for (const auto& link : refused->links) {
    EXPECT_THAT(MessageOf(*link), HasSubstr("the tokenizer differs from that of rank 0 on rank 1; give all hosts"));
  }
}

TEST_F(UnevenDataTest, DocumentsOnOneHostOnly_AreRefusedByAllRanks) {
  std::ofstream(folder_ / "text.jsonl") << R"({"text": "a line of text, long enough for a sample"})"
                                        << "\n";
  std::ofstream(folder_ / "chat.jsonl") << R"({"prompt": "one", "response": "two"})"
                                        << "\n";
  StartOrder order = JoiningOrder("run", 2);
  order.config.data.text = {};

  const auto refused = RunTwo(order, [this](size_t rank, TrainConfig::Data& data) {
    data.jsonl = {folder_ / (rank == 0 ? "text.jsonl" : "chat.jsonl")};
  });

  EXPECT_THAT(refused->codes, ElementsAre(kExitRefused, kExitRefused)) << refused->logs[0].str();
  for (const auto& link : refused->links) {
    EXPECT_THAT(MessageOf(*link), HasSubstr("differs from that of rank 0 on rank 1; give all hosts the same files"));
  }
}

}  // namespace
}  // namespace trainyard
