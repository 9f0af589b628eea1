// Error messages for wrong command lines, job names and shell completion.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/command_line_errors.h"
#include "client/commands.h"
#include "client/completion.h"
#include "client/find_job.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::FindJobsResponse Found(const std::vector<std::string>& ids, uint32_t total) {
  v1::FindJobsResponse found;
  for (const std::string& id : ids) {
    v1::FoundJob& job = *found.add_jobs();
    job.set_job_id(id);
    job.set_name("tiny\x1b[2J");
    job.set_state(v1::JOB_STATE_RUNNING);
  }
  found.set_total(total);
  return found;
}

TEST(FindJob, ReturnsTheOnlyMatch_OrTheTextIfNothingMatches) {
  EXPECT_EQ(*ChooseJob("k3", Found({"k3x7q2ab"}, 1)), "k3x7q2ab");
  EXPECT_EQ(*ChooseJob("nosuchjob", Found({}, 0)), "nosuchjob");
}

TEST(FindJob, SeveralMatches_AreRefusedWithAList) {
  auto chosen = ChooseJob("tiny", Found({"k3x7q2ab", "ab12cd34"}, 3));

  EXPECT_EQ(chosen.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(chosen.status().message(),
            "'tiny' matches 3 jobs; give more of the id:\n"
            "  k3x7q2ab  RUNNING  tiny\\x1b[2J\n"
            "  ab12cd34  RUNNING  tiny\\x1b[2J\n"
            "  and 1 more");
}

TEST(FindJob, MayBeJob_IsFalseForPaths) {
  EXPECT_TRUE(MayBeJob("k3x7q2ab"));
  EXPECT_FALSE(MayBeJob("runs/k3x7q2ab"));
  EXPECT_FALSE(MayBeJob("."));
}

TEST(Logs, ATailOfNoLines_IsRefused) {
  CLI::App app("", "trainctl");
  Globals globals;
  Chosen chosen;
  AddLogs(app, globals, &chosen);

  EXPECT_THROW(app.parse("logs k3x7q2ab --tail 0"), CLI::ValidationError);
  EXPECT_NO_THROW(app.parse("logs k3x7q2ab --tail 1"));
}

TEST(Numbers, WithLeadingZeros_AreDecimal) {
  CLI::App app("", "trainctl");
  uint32_t number = 0;
  app.add_subcommand("show")->add_option("--number", number);
  ReadNumbersAsDecimal(app);

  app.parse("show --number 010");
  EXPECT_EQ(number, 10u);
  app.parse("show --number 00");
  EXPECT_EQ(number, 0u);
  EXPECT_THROW(app.parse("show --number 0x10"), CLI::ConversionError);
}

TEST(Checkpoint, StepMayBeWrittenAsInTheNameOfItsFolder) {
  const TemporaryFolder run;
  for (const char* verb : {"show RUN --step 00000100", "verify RUN --step 00000100", "export RUN OUT --step 00000100",
                           "reshard RUN 00000100 --ranks 2 --out OUT"}) {
    CLI::App app("", "trainctl");
    Globals globals;
    Chosen chosen;
    AddCheckpoint(app, globals, &chosen);
    ReadNumbersAsDecimal(app);
    app.parse(absl::StrCat("checkpoint ", absl::StrReplaceAll(verb, {{"RUN", run.path()}, {"OUT", run / "out"}})));

    testing::internal::CaptureStderr();
    EXPECT_NE(chosen(), 0);
    const std::string said = testing::internal::GetCapturedStderr();

    EXPECT_TRUE(absl::StrContains(said, "step 100 ") || absl::StrContains(said, "step-00000100")) << said;
  }
}

class CommandLine : public testing::Test {
 protected:
  CommandLine() {
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.add_option("--coordinator", text_, "Coordinator");
    CLI::App* list = app_.add_subcommand("list", "List jobs");
    list->alias("ls");
    list->add_flag("--json", flag_, "One's JSON");
    CLI::App* checkpoint = app_.add_subcommand("checkpoint", "Look after checkpoints");
    checkpoint->require_subcommand(1);
    CLI::App* verify = checkpoint->add_subcommand("verify", "Verify");
    verify->add_option("folder", text_, "Folder");
    verify->add_option("--threads", text_, "Threads");
  }

  // The error message for these arguments; empty: they are accepted.
  std::string ErrorFor(std::vector<std::string> arguments) {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    try {
      app_.parse(reversed);
    } catch (const CLI::ParseError& error) {
      return CommandLineErrorMessage(app_, error, arguments);
    }
    return "";
  }

  CLI::App app_{"Trainyard", "trainctl"};
  std::string text_;
  bool flag_ = false;
};

TEST_F(CommandLine, VerbOfAnotherProgram_SuggestsTheRightVerb) {
  EXPECT_THAT(ErrorFor({"delete", "k3x7q2ab"}),
              HasSubstr("there is no verb 'delete': `trainctl cancel JOB` ends a job"));
  for (const char* verb : {"get", "kill", "top", "stop", "start"}) {
    EXPECT_THAT(ErrorFor({"--coordinator", "h:1", verb}), HasSubstr("`trainctl ")) << verb;
  }
}

TEST_F(CommandLine, MisspeltVerb_SuggestsTheNearestVerb) {
  EXPECT_EQ(ErrorFor({"lits"}), "there is no verb 'lits'; did you mean 'list'? Verbs: list, checkpoint");
  EXPECT_EQ(ErrorFor({"checkpoint", "verfy"}), "there is no verb 'verfy'; did you mean 'verify'? Verbs: verify");
  EXPECT_EQ(ErrorFor({}), "no verb is given; see trainctl --help. Verbs: list, checkpoint");
}

TEST_F(CommandLine, ExtraArguments_AreListedInOrder) {
  EXPECT_EQ(ErrorFor({"list", "-x", "json"}), "unexpected arguments: -x json (see trainctl list --help)");
  EXPECT_EQ(ErrorFor({"list", "--jsn"}), "unexpected argument: --jsn (see trainctl list --help); did you mean --json?");
}

TEST_F(CommandLine, Alias_IsAccepted) { EXPECT_EQ(ErrorFor({"ls", "--json"}), ""); }

TEST(RequestsJson, RecognisesTheFlagJson_AndTheOptionOWithJson) {
  EXPECT_TRUE(RequestsJson({"list", "--json"}));
  EXPECT_TRUE(RequestsJson({"list", "-o", "json"}));
  EXPECT_FALSE(RequestsJson({"list", "-o"}));
  EXPECT_FALSE(RequestsJson({"list", "-o", "text", "json"}));
}

TEST_F(CommandLine, Completion_ContainsVerbsOptionsAndAliases) {
  const std::string bash = *CompletionScript(app_, "bash");
  EXPECT_THAT(bash, HasSubstr("'list'|'ls') choices='--help -h --json' ;;"));
  EXPECT_THAT(bash, HasSubstr("'checkpoint verify') choices='--help -h --threads' ;;"));
  EXPECT_THAT(bash, HasSubstr("complete -o default -F _trainctl trainctl"));
  EXPECT_THAT(*CompletionScript(app_, "zsh"), HasSubstr("#compdef trainctl"));
  const std::string fish = *CompletionScript(app_, "fish");
  EXPECT_THAT(fish, HasSubstr("complete -c trainctl -n '__fish_use_subcommand' -f -a list -d 'List jobs'\n"));
  EXPECT_THAT(fish, HasSubstr("-n '__fish_seen_subcommand_from list' -l json -d 'One'\\''s JSON'\n"));
  EXPECT_EQ(CompletionScript(app_, "tcsh").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace trainyard::client
