// trainctl config: the questions, the draft of the job, the dialogue, and the text that is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/config_dialogue.h"
#include "client/config_draft.h"
#include "client/config_files.h"
#include "client/config_text.h"
#include "common/files.h"
#include "foreign/import.h"

namespace trainyard::client {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

ConfigFacts Elsewhere() {
  ConfigFacts facts;
  facts.cores = 4;
  facts.elsewhere = true;  // so that no file has to exist
  facts.working_directory = "/home/ada";
  return facts;
}

ConfigInput Set(std::vector<std::string> overrides) {
  return {.text = "", .file_name = "", .overrides = std::move(overrides)};
}

std::vector<std::string> IdsOf(const Draft& draft) {
  std::vector<std::string> ids;
  for (const AskedQuestion& question : draft.questions) ids.push_back(question.id);
  return ids;
}

// A user who types these lines, then ends the input.
struct User {
  std::deque<std::string> lines;
  std::vector<std::string> prompts = {};
  std::string shown = {};

  absl::StatusOr<Draft> Answer(const ConfigInput& input, const ConfigFacts& facts) {
    const LineReader read_line = [this](const std::string& prompt) -> absl::StatusOr<std::string> {
      prompts.push_back(prompt);
      if (lines.empty()) return absl::OutOfRangeError("the input has ended");
      std::string line = lines.front();
      lines.pop_front();
      return line;
    };
    return AskQuestions(input, facts, read_line, [this](absl::string_view text) { shown += absl::StrCat(text, "\n"); });
  }
};

TEST(ConfigDraft, DoesNotAskAboutGivenKeys_AndHasDefaultsForTheOthers) {
  const Draft draft = MakeDraft(Set({"train.data.text=[a.txt]"}), Elsewhere(), {});

  EXPECT_TRUE(draft.problems.ok()) << draft.problems.ToStatus();
  EXPECT_THAT(draft.unanswered, IsEmpty());
  // The keys that the command line gives already say that a model is trained.
  EXPECT_THAT(IdsOf(draft), Not(Contains("kind")));
  EXPECT_THAT(IdsOf(draft), Not(Contains("data")));
  EXPECT_EQ(draft.spec.train().model().preset(), "lab-tiny");
  EXPECT_EQ(draft.spec.train().data().text(0), "/home/ada/a.txt");
  EXPECT_EQ(draft.spec.checkpoint().every_steps(), 100u);
}

TEST(ConfigDraft, RecomputesDefaultsForTheAnswers) {
  const Draft draft = MakeDraft(Set({"train.data.text=[a.txt]"}), Elsewhere(), {{"steps", "50"}, {"ranks", "3"}});

  EXPECT_EQ(draft.spec.checkpoint().every_steps(), 5u);
  EXPECT_EQ(draft.spec.train().batch().global_size(), 9u);
}

TEST(ConfigDraft, AScriptBecomesACommand) {
  ConfigFacts facts = Elsewhere();
  facts.found.scripts = {"eval.py", "train.py"};

  const Draft draft = MakeDraft({}, facts, {{"script", "train.py --name 'a b'"}, {"ranks", "4"}});

  EXPECT_TRUE(draft.problems.ok()) << draft.problems.ToStatus();
  EXPECT_THAT(draft.spec.command().argv(), ElementsAre("python3", "train.py", "--name", "a b"));
  EXPECT_EQ(draft.spec.command().workdir(), "/home/ada");
  EXPECT_EQ(draft.spec.command().ranks_per_host(), 4u);
  EXPECT_EQ(draft.spec.recovery().max_restarts(), 3u);
  EXPECT_EQ(draft.spec.name(), "train");
  EXPECT_FALSE(draft.spec.has_train());
  EXPECT_EQ(draft.questions[1].suggestion, "train.py");
}

TEST(ConfigDraft, MissingFiles_AreErrors_OrWarningsIfTheJobRunsElsewhere) {
  ConfigFacts here = Elsewhere();
  here.elsewhere = false;
  const ConfigInput input = Set({"train.data.text=[/no/such/file.txt]"});

  const Draft there = MakeDraft(input, Elsewhere(), {});
  const Draft draft = MakeDraft(input, here, {});

  EXPECT_TRUE(there.problems.ok());
  ASSERT_EQ(there.problems.Warnings().size(), 1u);
  EXPECT_THAT(there.problems.Warnings()[0].text, HasSubstr("on this machine; the job runs on others"));
  EXPECT_THAT(draft.problems.ToStatus().message(), HasSubstr("/no/such/file.txt"));
}

TEST(ConfigDraft, ProblemsBelongToTheQuestionOfTheirKey) {
  const Draft draft = MakeDraft(Set({"train.data.text=[a.txt]", "train.model.layers=2"}), Elsewhere(), {});

  EXPECT_EQ(OwnerOf(draft, "train.batch.micro"), "batch");
  EXPECT_EQ(OwnerOf(draft, "name"), "name");
  EXPECT_EQ(OwnerOf(draft, "train.seed"), "");
  EXPECT_EQ(OwnerOf(draft, "train.model.layers"), "");  // the command line gives it, so no question can correct it
}

TEST(ConfigDraft, ForAccelerate_RefusesKeysThatItsFileDoesNotHave) {
  ConfigFacts facts = Elsewhere();
  facts.accelerate = true;

  const Draft draft = MakeDraft(Set({"parallel.tensor=2", "parallel.data=hsdp", "train.precision=bf16"}), facts, {});

  EXPECT_EQ(draft.problems.error_count(), 2);
  EXPECT_THAT(draft.problems.ToStatus().message(), HasSubstr("parallel.tensor: a file for Accelerate has no such key"));
  EXPECT_THAT(draft.problems.ToStatus().message(), HasSubstr("hsdp"));
}

TEST(ConfigWords, AreSplitAsByAShell) {
  EXPECT_THAT(*SplitCommand(R"( a 'b c'  "d\"e" f\ g '' )"), ElementsAre("a", "b c", "d\"e", "f g", ""));
  EXPECT_THAT(*SplitCommand("  "), IsEmpty());
  EXPECT_FALSE(SplitCommand("a 'b").ok());
}

TEST(ConfigDialogue, AcceptsDefaults_Explains_AndGoesBack) {
  User user{{"model", "", "?", "", "", "<", "7", "2", "", "", "", "", "", "", "", "", ""}};
  ConfigFacts facts = Elsewhere();
  facts.found.data = {"data/a.txt"};

  const absl::StatusOr<Draft> draft = user.Answer({}, facts);

  ASSERT_TRUE(draft.ok()) << draft.status() << user.shown;
  EXPECT_EQ(draft->spec.train().steps(), 7u);
  EXPECT_EQ(draft->spec.resources().ranks(), 2u);
  EXPECT_THAT(user.shown, HasSubstr("nanoGPT"));
  EXPECT_EQ(user.prompts[0],
            "What does the job run: a script of yours (script), or a model of Trainyard (model)? "
            "[model] ");
}

TEST(ConfigDialogue, AWrongAnswerIsAskedAgain_WithTheErrorOfTheReader) {
  User user{{"many", "", "x", "fp32"}};
  const ConfigInput input =
      Set({"train.data.text=[a]", "train.model.preset=lab-tiny", "resources.ranks=1", "parallel.data=ddp",
           "train.batch.global=8", "train.optimizer.lr=1e-3", "train.evaluate.every_steps=0", "parallel.recompute=none",
           "checkpoint.every_steps=1", "checkpoint.dir=/runs", "name=a"});

  const absl::StatusOr<Draft> draft = user.Answer(input, Elsewhere());

  ASSERT_TRUE(draft.ok()) << draft.status() << user.shown;
  EXPECT_THAT(user.shown, HasSubstr("train.steps: "));
  EXPECT_THAT(user.shown, HasSubstr("train.precision.type: "));
  EXPECT_EQ(draft->spec.train().steps(), 1000u);
}

TEST(ConfigDialogue, AProblemOfAGivenKey_IsShown_UntilAnAnswerResolvesIt) {
  User user{{"4", "6"}};
  const ConfigInput input = Set({"command.argv=[a]", "command.ranks_per_host=3", "recovery.max_restarts=0", "name=a"});

  const absl::StatusOr<Draft> draft = user.Answer(input, Elsewhere());

  ASSERT_TRUE(draft.ok()) << draft.status() << user.shown;
  EXPECT_THAT(user.shown, HasSubstr("does not divide"));
  EXPECT_EQ(draft->spec.resources().ranks(), 6u);
}

TEST(ConfigDialogue, AProblemOfAnEarlierAnswer_ReturnsToItsQuestion) {
  const std::string path = JoinPath(testing::TempDir(), "too_short_to_evaluate.txt");
  std::ofstream(path) << std::string(700, 'x');
  ConfigFacts here = Elsewhere();
  here.elsewhere = false;
  // The text suffices for training, but its held-out twentieth is too short for an evaluation.
  User user{{path, "9", "1", "", "", "", "1", ""}};
  const ConfigInput input = Set({"train.model.preset=lab-tiny", "parallel.data=ddp"});

  const absl::StatusOr<Draft> draft = user.Answer(input, here);

  EXPECT_EQ(draft.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(user.shown, HasSubstr("train.data.validation: leaves 35 of 700 bytes"));
  ASSERT_EQ(user.prompts.size(), 9u) << user.shown;
  EXPECT_EQ(user.prompts[7], absl::StrCat("Which data? [", path, "] "));
  // The user may keep the answer: another answer to the question about evaluations resolves the problem, too.
  EXPECT_EQ(user.prompts[8], "How many steps? [9] ");
}

TEST(ConfigDialogue, AProblemThatNoAnswerCanCorrect_EndsTheDialogueBeforeTheFirstQuestion) {
  User user{{""}};

  const absl::StatusOr<Draft> draft = user.Answer(Set({"train.seed=abc"}), Elsewhere());

  EXPECT_EQ(draft.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(draft.status().message(), HasSubstr("train.seed"));
  EXPECT_THAT(user.prompts, IsEmpty());
}

TEST(ConfigDialogue, EndsWithTheInput) {
  User user{{""}};

  EXPECT_EQ(user.Answer({}, Elsewhere()).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(ConfigText, ReadsAsTheDraft_WhateverTheNamesOfFilesContain) {
  const std::string hostile = "a\ncommand: {argv: [sh]} # \"x\\";
  Draft draft = MakeDraft(Set({"train.data.text=[a.txt]"}), Elsewhere(), {});
  draft.spec.mutable_train()->mutable_data()->set_text(0, hostile);

  const absl::StatusOr<std::string> text = JobFileText(draft);

  // JobFileText reads its own text, and returns an error instead if that has other values than the draft.
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, Not(HasSubstr("\ncommand:")));
  EXPECT_THAT(*JobFileText(MakeDraft(Set({"train.data.text=[a.txt]"}), Elsewhere(), {})),
              HasSubstr("  # The number of updates of the weights.\n  steps: 1000\n"));
}

TEST(ConfigText, OfEveryCombinationForAccelerate_IsImportedAsTheSameKeys) {
  ConfigFacts facts = Elsewhere();
  facts.accelerate = true;
  for (const char* strategy : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    for (const char* device : {"cpu", "gpu"}) {
      for (const char* ranks : {"1", "4"}) {
        for (const char* precision : {"fp32", "bf16", "fp16"}) {
          for (const char* on : {"yes", "no"}) {
            const Draft draft = MakeDraft({}, facts,
                                          {{"strategy", strategy},
                                           {"device", device},
                                           {"ranks", ranks},
                                           {"precision", precision},
                                           {"offload", on},
                                           {"recompute", on}});

            ASSERT_TRUE(draft.problems.ok()) << draft.problems.ToStatus();
            // AccelerateText imports its own text, and fails if the keys differ from those of the draft.
            EXPECT_TRUE(AccelerateText(draft).ok()) << strategy << device << ranks << AccelerateText(draft).status();
          }
        }
      }
    }
  }
}

TEST(ConfigText, ForAccelerate_RefusesWhatItCannotExpress) {
  ConfigFacts facts = Elsewhere();
  facts.accelerate = true;

  EXPECT_THAT(AccelerateText(MakeDraft(Set({"train.precision=fp64"}), facts, {})).status().message(),
              HasSubstr("fp64"));
  EXPECT_THAT(AccelerateText(MakeDraft(Set({"parallel.recompute=selective"}), facts, {})).status().message(),
              HasSubstr("parallel.recompute.mode"));
  EXPECT_THAT(AccelerateText(MakeDraft(Set({"parallel.offload={optimizer: true}"}), facts, {})).status().message(),
              HasSubstr("parallel.offload"));
}

class ConfigFolder : public testing::Test {
 protected:
  ConfigFolder()
      : folder_(JoinPath(testing::TempDir(), testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(folder_);
    EXPECT_TRUE(MakeFolders(JoinPath(folder_, "data/deep/deeper/deepest")).ok());
  }
  void Put(const std::string& name, const std::string& text = "x") { std::ofstream(JoinPath(folder_, name)) << text; }
  const std::string folder_;
};

TEST_F(ConfigFolder, IsSearchedForScriptsDataAndModels_TwoLevelsDeep) {
  for (const char* name : {"train.py", "a b.py", "notes.txt", "requirements.txt", "data/x.jsonl", "data/deep/y.bin",
                           "data/deep/deeper/deepest/z.txt", ".hidden.py"}) {
    Put(name);
  }
  EXPECT_TRUE(MakeFolders(JoinPath(folder_, "llama")).ok());
  Put("llama/config.json");

  const FoundFiles found = FindFiles(folder_);

  EXPECT_THAT(found.scripts, ElementsAre("train.py"));
  EXPECT_THAT(found.data, ElementsAre("data/deep/y.bin", "data/x.jsonl", "notes.txt"));
  EXPECT_THAT(found.models, ElementsAre("llama"));
}

TEST_F(ConfigFolder, GetsANewFile_ButNoFileIsReplacedUnasked) {
  const std::string path = JoinPath(folder_, "job.yaml");

  EXPECT_TRUE(WriteNewFile(path, "one", false).ok());
  const absl::Status second = WriteNewFile(path, "two", false);

  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(*ReadFile(path), "one");
  EXPECT_TRUE(WriteNewFile(path, "three", true).ok());
  EXPECT_EQ(*ReadFile(path), "three");
}

}  // namespace
}  // namespace trainyard::client
