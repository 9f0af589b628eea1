// Jobs with `command`: what is required, what is refused, and what the ranks receive.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "sample_job.h"
#include "spec/prepare.h"

namespace trainyard {
namespace {

constexpr char kCommandJob[] = "name: c\ncommand: {argv: [python3, train.py], workdir: /srv}\nresources: {ranks: 2}\n";

TEST(CommandJobs, KeepTheCommand_AndDropTheKeysOfTraining) {
  const ReadJob read = Read(kCommandJob);

  auto job = PrepareJob(read.spec, {.job_id = "abcdefgh", .default_run_root = ""});

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.command().argv_size(), 2);
  EXPECT_EQ(job->spec.command().grace_s(), 30);
  EXPECT_FALSE(job->spec.has_train());
  EXPECT_FALSE(job->spec.has_probe());
  EXPECT_FALSE(job->spec.has_checkpoint());
  EXPECT_EQ(read.Warnings(), "");
}

TEST(CommandJobs, WorkInTheFolderOfTheSubmitter_UnlessTheyNameAnother) {
  EXPECT_EQ(Read("name: c\ncommand: {argv: [ls], workdir: data}\n").spec.command().workdir(), "/home/ada/data");
  EXPECT_EQ(Read("name: c\ncommand: {argv: [ls]}\n").spec.command().workdir(), "/home/ada");
}

TEST(CommandJobs, ClientsOtherThanTrainctl_MustNameTheFolder) {
  v1::JobSpec spec;
  spec.set_name("c");
  spec.mutable_command()->add_argv("ls");

  auto job = PrepareJob(spec, {.job_id = "abcdefgh", .default_run_root = "/runs"});

  EXPECT_NE(job.status().message().find("command.workdir: is required"), std::string::npos) << job.status();
}

TEST(CommandJobs, HaveNumbersOfRanksThatFitTogether) {
  const auto errors = [](const char* keys) {
    return Read(absl::StrCat("name: c\ncommand: {argv: [ls], ", keys, "}\nresources: {ranks: 6}\n")).Errors();
  };
  EXPECT_EQ(errors("ranks_per_host: 2, min_ranks: 4, grow_after_s: 0, time_limit_s: 5, memory_bytes: 1e9"), "");
  EXPECT_NE(errors("ranks_per_host: 4").find("is 4, which does not divide resources.ranks (6)"), std::string::npos);
  EXPECT_NE(errors("min_ranks: 7").find("is 7, more than resources.ranks (6)"), std::string::npos);
  EXPECT_NE(errors("ranks_per_host: 2, min_ranks: 3").find("not a multiple of command.ranks_per_host (2)"),
            std::string::npos);
  EXPECT_NE(Read("name: c\ncommand: {argv: [ls], grow_after_s: 1}\n").Warnings().find("command.grow_after_s"),
            std::string::npos);
}

TEST(CommandJobs, MayHaveCpusAndACheck) {
  const ReadJob read = Read("name: c\ncommand: {argv: [ls], cpus: 2, check: {argv: [nvidia-smi]}}\n");
  EXPECT_EQ(read.Errors(), "");
  EXPECT_EQ(
      PrepareJob(read.spec, {.job_id = "abcdefgh", .default_run_root = ""})->spec.command().check().time_limit_s(), 60);
  const std::string errors = Read("name: c\ncommand: {argv: [ls], cpus: 0, check: {time_limit_s: 0}}\n").Errors();
  for (const char* key : {"command.cpus: ", "command.check.argv: is required", "command.check.time_limit_s: "}) {
    EXPECT_NE(errors.find(key), std::string::npos) << errors;
  }
  EXPECT_NE(Read("name: c\ncommand: {argv: [ls], check: {argv: ['']}}\n").Errors().find("found an empty string"),
            std::string::npos);
}

TEST(CommandJobs, AllProblemsAreReportedTogether) {
  const ReadJob read = Read(
      "name: c\n"
      "command:\n"
      "  argv: ['']\n"
      "  env: [A, 1B=2, RANK=0, C=1, C=2, TRAINYARD_LINK=/etc/x]\n"
      "  grace_s: -1\n"
      "  time_limit: 5\n"
      "train: {steps: 1}\n");

  const std::string errors = read.Errors();
  for (const char* expected :
       {"command.argv: expected a program as the first element, found an empty string",
        "command.env: expected NAME=value, with a name of letters, digits and '_'; found 'A' without '='", "found '1B'",
        "command.env: sets RANK, which the worker daemon sets", "command.env: sets C twice",
        "command.env: sets 'TRAINYARD_LINK'; names that begin with TRAINYARD_", "command.grace_s: ",
        "unknown key 'time_limit'", "give either train or command, not both", "train.model: is required"}) {
    EXPECT_NE(errors.find(expected), std::string::npos) << expected << " in:\n" << errors;
  }
}

TEST(CommandJobs, ShippedCommand_IsValidWithoutAWarning) {
  const ReadJob read = Read(*ReadFile("configs/jobs/command.yaml"));

  EXPECT_EQ(read.Errors(), "");
  EXPECT_EQ(read.Warnings(), "");
}

TEST(CommandJobs, NeedAProgram) {
  EXPECT_NE(Read("name: c\ncommand: {workdir: /w}\n").Errors().find("command.argv: is required"), std::string::npos);
  EXPECT_NE(Read("name: c\ncommand: {argv: []}\n").Errors().find("command.argv: "), std::string::npos);
}

TEST(CommandJobs, WarnOfKeysWithoutEffect) {
  const std::string warnings = Read(absl::StrCat(kCommandJob,
                                                 "checkpoint: {keep: 1}\nparallel: {overlap: true}\n"
                                                 "diagnostics: {}\nrecovery: {max_restarts: 3}\n"))
                                   .Warnings();

  EXPECT_NE(warnings.find("checkpoint: has no effect"), std::string::npos) << warnings;
  EXPECT_NE(warnings.find("parallel: has no effect"), std::string::npos) << warnings;
  EXPECT_NE(warnings.find("its folder is command.checkpoint_dir"), std::string::npos) << warnings;
  EXPECT_EQ(warnings.find("max_restarts"), std::string::npos) << warnings;
}

TEST(CommandJobs, ReportHangs_AndHaveAFolderForCheckpoints) {
  const auto resolve = [](const std::string& keys, const std::string& root) {
    const ReadJob read = Read(absl::StrCat(kCommandJob, keys));
    return PrepareJob(read.spec, {.job_id = "abcdefgh", .default_run_root = root})->spec;
  };
  EXPECT_EQ(resolve("", "").recovery().on_hang(), v1::ON_HANG_NOTIFY);
  EXPECT_EQ(resolve("recovery: {on_hang: restart}\n", "").recovery().on_hang(), v1::ON_HANG_RESTART);
  EXPECT_FALSE(resolve("", "").command().has_checkpoint_dir());
  EXPECT_EQ(resolve("", "/runs").command().checkpoint_dir(), "/runs/c-abcdefgh");
  EXPECT_EQ(Read("name: c\ncommand: {argv: [ls], checkpoint_dir: saved}\n").spec.command().checkpoint_dir(),
            "/home/ada/saved");
}

TEST(OnEnd, AcceptsAUrl_AndRefusesOtherText) {
  const auto errors = [](const std::string& url) {
    return Read(absl::StrCat(kCommandJob, "on_end: {webhook: \"", url, "\"}\n")).Errors();
  };
  for (const char* url :
       {"https://example.org/a?b=c@d", "http://127.0.0.1:8080", "https://[::1]:80/#x", "http://[::1]"}) {
    EXPECT_EQ(errors(url), "") << url;
  }
  for (const char* url :
       {"", "ftp://a/b", "https://", "https:///a", "https://a b", "https://\u00e9.org", "example.org"}) {
    EXPECT_NE(errors(url).find("on_end.webhook: expected a URL"), std::string::npos) << url << errors(url);
  }
  for (const char* url :
       {"http://a:99999999999", "http://a:70000/x", "http://a:0", "http://a:80x?y", "http://a:", "http://a:1:2",
        "http://:80", "http://[::1", "http://[::1]x", "https://[2001:db8::1]/hook", "http://[a]"}) {
    EXPECT_NE(errors(url).find("on_end.webhook: expected a host, with a port of 1 to 65535"), std::string::npos)
        << url << errors(url);
  }
  EXPECT_NE(errors("https://ada:secret@example.org/a").find("must not contain a user or password"), std::string::npos);
}

}  // namespace
}  // namespace trainyard
