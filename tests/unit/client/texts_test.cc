// Text output: amounts, tables, the plot, the status and the summary.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "client/byte_progress.h"
#include "client/column_width.h"
#include "client/exit_code.h"
#include "client/job_calls.h"
#include "client/layout_view.h"
#include "client/output.h"
#include "client/plot.h"
#include "client/status.h"
#include "client/summary.h"
#include "client/terminal.h"
#include "client/text.h"
#include "tests/unit/client/events.h"

namespace trainyard::client {
namespace {

TEST(Amounts, HaveThreeDigits) {
  EXPECT_EQ(Amount(0), "0");
  EXPECT_EQ(Amount(999), "999");
  EXPECT_EQ(Amount(1234), "1.23k");
  EXPECT_EQ(Amount(12345), "12.3k");
  EXPECT_EQ(Amount(999'600), "1.00M");
  EXPECT_EQ(Amount(4.5e9), "4.50G");
}

TEST(Durations, NameTheTwoLargestUnits) {
  EXPECT_EQ(DurationText(absl::Milliseconds(420)), "0.4 s");
  EXPECT_EQ(DurationText(absl::Seconds(42)), "42 s");
  EXPECT_EQ(DurationText(absl::Seconds(62)), "1m02s");
  EXPECT_EQ(DurationText(absl::Minutes(185)), "3h05m");
  EXPECT_EQ(DurationText(absl::Hours(52)), "2d04h");
  EXPECT_EQ(DurationText(absl::Seconds(-90)), "0.0 s") << "the clocks of two hosts differ";
}

TEST(Bytes, AreInBinaryUnits) {
  EXPECT_EQ(BytesText(12), "12 B");
  EXPECT_EQ(BytesText(3 << 20), "3.0 MiB");
}

TEST(ByteBars, ShowShareAmountAndRate) {
  EXPECT_EQ(ByteBar("verify", 3 << 20, 12 << 20, absl::Seconds(2)),
            "verify [#####...............] 25%  3.0 MiB of 12.0 MiB  1.5 MiB/s");
  EXPECT_EQ(ByteBar("verify step-00000100", 3 << 20, 12 << 20, absl::Seconds(2), 60),
            "verify step-00000100 25%  3.0 MiB of 12.0 MiB");
  EXPECT_EQ(ByteBar("tokenize a-file-with-a-long-name", 3 << 20, 12 << 20, absl::Seconds(2), 20),
            "tokenize a-file 25%");
  EXPECT_EQ(ByteBar("verify", 0, 0, absl::ZeroDuration()), "verify [####################] 100%  0 B of 0 B");
}

TEST(Tables, AlignColumnsByCharactersNotBytes) {
  EXPECT_EQ(Table({{"A", "NAME"}, {"1", "ü"}, {"22", "x"}}), "A   NAME\n1   ü\n22  x\n");
}

TEST(Tables, AlignColumnsWithCharactersOfTwoColumnsOrNone) {
  EXPECT_EQ(Table({{"NAME", "STATE"}, {"学習", "up"}, {"e\u0301t\u00e9", "up"}, {"🚂1", "up"}}),
            "NAME  STATE\n学習  up\ne\u0301t\u00e9   up\n🚂1   up\n");
}

TEST(Columns, AreCountedAsATerminalShowsTheText) {
  EXPECT_EQ(TextColumns("plain \u00fc\u2500"), 8u);
  EXPECT_EQ(TextColumns("한국어ﾊﾝ"), 8u) << "three wide characters, and two of the half-width form";
  EXPECT_EQ(TextColumns("👩\u200d🚀\ufe0f"), 4u) << "the joiner and the selector take none";
  EXPECT_EQ(TextColumns("\xff\xc3("), 3u) << "bytes that are not UTF-8";
  EXPECT_EQ(BytesWithin("学習e\u0301x", 3), 3u) << "half a character does not fit";
  EXPECT_EQ(BytesWithin("学習e\u0301x", 5), 9u) << "a mark stays with its letter";
}

TEST(WrapText, DividesNoCharacterAndFillsNoMoreThanItsColumns) {
  EXPECT_EQ(WrapText("学習学習 学習", 5), (std::vector<std::string>{"学習", "学習", "学習"}));
  EXPECT_EQ(WrapText("学習", 1), (std::vector<std::string>{"学", "習"}));
}

TEST(SubmitErrors, NameTheJobIfItMayHaveBeenSubmitted) {
  const absl::Status lost = absl::DeadlineExceededError("no answer");
  const absl::Status refused = absl::InvalidArgumentError("wrong");

  const absl::Status named = SubmitError(lost, "k3x7q2ab", "look");

  EXPECT_EQ(named.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(named.message(), "no answer; the job may have been submitted as k3x7q2ab: look");
  EXPECT_EQ(SubmitError(absl::UnavailableError("gone"), "k3x7q2ab", "look").message(),
            "gone; the job may have been submitted as k3x7q2ab: look");
  EXPECT_EQ(SubmitError(refused, "k3x7q2ab", "look"), refused);
}

TEST(ShellWord, IsQuotedIfAShellWouldSplitOrExpandIt) {
  EXPECT_EQ(ShellWord("unix:/a/b-1.sock"), "unix:/a/b-1.sock");
  EXPECT_EQ(ShellWord("/my runs/a"), "'/my runs/a'");
  EXPECT_EQ(ShellWord("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(ShellWord(""), "''");
}

// The table of `trainctl list` with a long reason that contains a path longer than a line.
std::vector<std::vector<std::string>> WideRows() {
  return {
      {"ID", "NAME", "STATE", "RANKS", "STEP", "RESTARTS", "AGE", "REASON"},
      {"k3x7q2ab", "stdlib-gpt", "RUNNING", "2", "120/1200", "0", "3m10s", ""},
      {"ab12cd34", "tiny", "FAILED", "16", "1/20", "10", "2d04h",
       "rank 1 on w2 ended: the disk of /a/very/long/path/without/any/blank/in/it/that/is/longer/than/a/line/is full"}};
}

std::string WithoutBlanks(std::string text) {
  text.erase(std::remove_if(text.begin(), text.end(), [](char c) { return c == ' ' || c == '\n'; }), text.end());
  return text;
}

TEST(Tables, FitAnyWidthWithoutLosingText) {
  for (int columns : {20, 40, 60, 80, 100, 200}) {
    const std::string table = Table(WideRows(), columns);

    for (absl::string_view line : absl::StrSplit(table, '\n')) {
      EXPECT_LE(line.size(), static_cast<size_t>(columns)) << table;
    }
    std::string characters = WithoutBlanks(table), all = WithoutBlanks(Table(WideRows()));
    std::sort(characters.begin(), characters.end());
    std::sort(all.begin(), all.end());
    EXPECT_EQ(characters, all) << table;
  }
}

TEST(Tables, ColumnsThatDoNotFit_MoveToFurtherLines) {
  EXPECT_EQ(Table(WideRows(), 60),
            "ID        NAME        STATE    RANKS  STEP      RESTARTS\n"
            "    AGE    REASON\n"
            "k3x7q2ab  stdlib-gpt  RUNNING  2      120/1200  0\n"
            "    3m10s\n"
            "ab12cd34  tiny        FAILED   16     1/20      10\n"
            "    2d04h  rank 1 on w2 ended: the disk of\n"
            "           /a/very/long/path/without/any/blank/in/it/that/is\n"
            "           /longer/than/a/line/is full\n");
}

TEST(Tables, LongLastCell_IsWrapped) {
  EXPECT_EQ(Table({{"  step", "1 of 2"}, {"  run folder", "a place with a name of several words"}}, 40),
            "  step        1 of 2\n"
            "  run folder  a place with a name of\n"
            "              several words\n");
}

TEST(Printable, EscapesControlCharactersAndCutsWholeCharacters) {
  EXPECT_EQ(Printable("a\x1b[2J\tb\nc", 100), "a\\x1b[2J\\x09b\\x0ac");
  EXPECT_EQ(Printable("12345ü", 6), "12345") << "half a character must not be left";
  EXPECT_EQ(Printable("", 10), "");
}

TEST(LogLines, OnATerminal_KeepColoursAndDropOtherSequences) {
  EXPECT_EQ(LogLineForTerminals("plain\ttext"), "plain\ttext");
  EXPECT_EQ(LogLineForTerminals("\x1b[1;31mred\x1b[2J\x1b[H\x1b]0;title\a!\x1b]52;c;x\x1b\\?\x1b(B"),
            "\x1b[1;31mred!?\x1b[0m");
  EXPECT_EQ(LogLineForTerminals("50 %\r100 %\r"), "50 %\\x0d100 %");
  EXPECT_EQ(LogLineForTerminals("cut \x1b["), "cut ");
  EXPECT_EQ(LogLineForTerminals("\xc2\x9b"
                                "2J"),
            "\\xc2\\x9b2J")
      << "C1 control character, the same as ESC [";
}

TEST(Json, EscapesCharactersThatTerminalsInterpret) {
  EXPECT_EQ(JsonForTerminals("{\"a\":\"\x7f\xc2\x9b\xe2\x80\xae ü\"}"), "{\"a\":\"\\u007f\\u009b\\u202e ü\"}");
}

TEST(CutToColumns, CountsNeitherColoursNorBytes) {
  EXPECT_EQ(CutToColumns("\x1b[32m学習", 3), "\x1b[32m学\x1b[0m");
  EXPECT_EQ(CutToColumns("\x1b[32m██\x1b[0m  ab", 5), "\x1b[32m██\x1b[0m  a");
  EXPECT_EQ(CutToColumns("\x1b[32m████", 2), "\x1b[32m██\x1b[0m");
}

TEST(Plot, StraightLine_IsDrawnWithScaleAndSteps) {
  std::vector<std::pair<uint64_t, double>> points;
  for (uint64_t step = 1; step <= 12; ++step) points.emplace_back(step, 13.0 - static_cast<double>(step));

  EXPECT_EQ(Plot(points, {.columns = 21, .rows = 4, .unicode = false}),
            "     12 |**\n"
            "        |  ****\n"
            "  4.667 |      ****\n"
            "      1 |          **\n"
            "        +------------\n"
            "         step 1    12\n");
}

TEST(Plot, WithUnicode_UsesBrailleDots) {
  EXPECT_EQ(Plot({{1, 2.0}, {2, 1.0}}, {.columns = 17, .rows = 2, .unicode = true}),
            "      2 │⠉⠒⠤⣀\n"
            "      1 │    ⠉⠒⠤⣀\n"
            "        └────────\n"
            "         step 1 2\n");
}

TEST(Plot, NeedsTwoFinitePoints) {
  EXPECT_EQ(Plot({}, {}), "");
  EXPECT_EQ(Plot({{1, 2.0}}, {}), "");
  EXPECT_EQ(Plot({{1, 2.0}, {2, std::nan("")}}, {}), "");
}

TEST(Plot, EqualLosses_AreDrawn) {
  EXPECT_NE(Plot({{1, 2.0}, {9, 2.0}}, {.columns = 20, .rows = 3, .unicode = false}).find('*'), std::string::npos);
}

v1::Job SampleJob() {
  v1::Job job;
  job.set_job_id("k3x7q2ab");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_reason("all 2 ranks are ready");
  job.set_generation(2);
  job.set_restarts(1);
  job.set_last_step(40);
  job.set_last_loss(3.25);
  job.mutable_spec()->set_name("tiny");
  job.mutable_spec()->mutable_train()->set_steps(100);
  job.mutable_spec()->mutable_train()->mutable_precision()->set_param(v1::PRECISION_BF16);
  job.mutable_spec()->mutable_parallel()->set_data(v1::DATA_PARALLEL_FSDP);
  v1::ResolvedKey& device = *job.add_decisions();
  device.set_key("resources.device");
  device.set_value("cuda");
  job.mutable_spec()->mutable_resources()->set_ranks(2);
  job.mutable_spec()->mutable_recovery()->set_max_restarts(10);
  job.mutable_spec()->mutable_checkpoint()->set_dir("/runs/tiny");
  for (uint32_t i = 0; i < 2; ++i) {
    auto* rank = job.add_ranks();
    rank->set_rank(i);
    rank->set_host("h1");
    rank->set_generation(2);
    rank->set_phase("train");
    rank->set_last_step(40 - i);
    rank->set_last_report_age_s(0.25);
    rank->set_pid(100 + i);
  }
  return job;
}

TEST(StatusText, ShowsTheJobAndEveryRank) {
  EXPECT_EQ(StatusText(SampleJob()),
            "job k3x7q2ab (tiny): RUNNING\n"
            "  all 2 ranks are ready\n"
            "  step        40 of 100, loss 3.2500\n"
            "  generation  2, restarts 1 of 10\n"
            "  strategy    fsdp on 2 ranks, bf16, cuda\n"
            "  run folder  /runs/tiny\n"
            "\n"
            "RANK  HOST  PHASE  FOR    LAST STEP  COMPUTE  WAITED  REPORT AGE  PID  WAITS IN  EXIT\n"
            "0     h1    train  0.0 s  40         -        -       0.2 s       100  -\n"
            "1     h1    train  0.0 s  39         -        -       0.2 s       101  -\n");
}

TEST(StatusText, LeavesOutWhatViewersDoNotSee) {
  v1::Job job = SampleJob();
  job.set_priority(50);
  job.clear_ranks();
  job.clear_decisions();
  job.clear_spec();
  job.mutable_spec()->set_name("tiny");
  job.mutable_spec()->mutable_resources()->set_ranks(2);

  EXPECT_EQ(StatusText(job),
            "job k3x7q2ab (tiny): RUNNING\n"
            "  all 2 ranks are ready\n"
            "  step        40, loss 3.2500\n"
            "  priority    50\n"
            "  generation  2, restarts 1\n");
}

v1::JobSpec DividedSpec(uint32_t ranks, uint32_t stages, uint32_t tensor) {
  v1::JobSpec spec;
  v1::Train& train = *spec.mutable_train();
  train.mutable_model()->set_layers(5);
  train.mutable_model()->set_heads(4);
  train.mutable_model()->set_width(16);
  train.mutable_batch()->set_global_size(16);
  train.mutable_batch()->set_micro(2);
  spec.mutable_resources()->set_ranks(ranks);
  spec.mutable_parallel()->set_tensor(tensor);
  spec.mutable_parallel()->mutable_pipeline()->set_stages(stages);
  return spec;
}

TEST(LayoutText, ShowsTheEffectiveBatch) {
  const auto text = [](uint32_t ranks, uint32_t micro, uint32_t global) {
    v1::JobSpec spec = DividedSpec(ranks, 1, 1);
    spec.mutable_train()->mutable_batch()->set_micro(micro);
    spec.mutable_train()->mutable_batch()->set_global_size(global);
    return LayoutText(spec);
  };
  EXPECT_EQ(text(1, 4, 32), "micro x micro-batches x data ranks: 4 x 8 x 1 = 32 = global\n");
  EXPECT_EQ(text(1, 4, 16), "micro x micro-batches x data ranks: 4 x 4 x 1 = 16 = global\n");
  EXPECT_EQ(text(4, 4, 64), "micro x micro-batches x data ranks: 4 x 4 x 4 = 64 = global\n");
  EXPECT_EQ(text(2, 4, 12), "micro x micro-batches x data ranks: 4 x 2 x 2 = 16, of which global uses 12\n");
  EXPECT_EQ(LayoutText(v1::JobSpec()), "");
}

TEST(LayoutText, ShowsWhatEachStageHolds_AndItsRanks) {
  EXPECT_EQ(LayoutText(DividedSpec(8, 2, 2)),
            "stages 2 x data ranks 2 x tensor 2 = 8 ranks; 1f1b, 4 micro-batches, bubble 23.1 %\n"
            "micro x micro-batches x data ranks: 2 x 4 x 2 = 16 = global\n"
            "STAGE  HOLDS                  RANKS\n"
            "0      embedding, blocks 0-2  0+1 | 2+3\n"
            "1      blocks 3-4, head       4+5 | 6+7\n");
  v1::JobSpec interleaved = DividedSpec(2, 2, 1);
  interleaved.mutable_parallel()->mutable_pipeline()->set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);
  interleaved.mutable_train()->mutable_batch()->set_global_size(8);
  EXPECT_EQ(LayoutText(interleaved),
            "stages 2 x data ranks 1 x tensor 1 = 2 ranks; interleaved, 4 micro-batches, bubble 16.7 %\n"
            "micro x micro-batches x data ranks: 2 x 4 x 1 = 8 = global\n"
            "STAGE  HOLDS                           RANKS\n"
            "0      embedding, blocks 0-1, block 3  0\n"
            "1      block 2, block 4, head          1\n");
  EXPECT_EQ(LayoutText(DividedSpec(6, 1, 2)),
            "stages 1 x data ranks 3 x tensor 2 = 6 ranks\n"
            "micro x micro-batches x data ranks: 2 x 3 x 3 = 18, of which global uses 16\n"
            "STAGE  HOLDS                        RANKS\n"
            "0      embedding, blocks 0-4, head  0+1 | 2+3 | 4+5\n");
}

TEST(LayoutText, NamesADividedSequence) {
  v1::JobSpec spec = DividedSpec(4, 2, 2);
  spec.mutable_parallel()->set_sequence(true);

  EXPECT_EQ(LayoutLine(spec).substr(0, LayoutLine(spec).rfind(',')),
            "stages 2 x data ranks 1 x tensor 2 = 4 ranks; tensor ranks divide the sequence; 1f1b, 8 micro-batches");
  EXPECT_EQ(LayoutJson(spec)["sequence"], true);
  EXPECT_EQ(LayoutJson(DividedSpec(4, 2, 2))["sequence"], false);
}

TEST(LayoutJson, HasTheBlocksOfEachStage) {
  const nlohmann::ordered_json json = LayoutJson(DividedSpec(4, 2, 1));

  EXPECT_EQ(json["data_ranks"], 2);
  EXPECT_EQ(json["micro_batches"], 4);
  EXPECT_EQ(json["schedule"], "1f1b");
  EXPECT_EQ(json["blocks"].dump(), "[[[0,3]],[[3,5]]]");
  EXPECT_TRUE(LayoutJson(v1::JobSpec()).empty());
}

TEST(StatusText, ShowsStagesAndTensorRanks) {
  v1::Job job = SampleJob();
  const v1::JobSpec divided = DividedSpec(2, 2, 1);
  *job.mutable_spec()->mutable_resources() = divided.resources();
  *job.mutable_spec()->mutable_parallel() = divided.parallel();
  *job.mutable_spec()->mutable_train() = divided.train();

  const std::string text = StatusText(job);

  EXPECT_NE(text.find("  layout      stages 2 x data ranks 1 x tensor 1 = 2 ranks; 1f1b, 8 micro-batches, bubble "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("RANK  STAGE  HOST  PHASE"), std::string::npos) << text;
  EXPECT_NE(text.find("\n1     1      h1    train"), std::string::npos) << text;
}

TEST(StatusText, ShowsMemoryOfEachRank) {
  v1::Job job = SampleJob();
  for (const char* kind : {"parameters", "reserved"}) {
    v1::MemoryUse& use = *job.mutable_ranks(1)->add_memory();
    use.set_kind(kind);
    use.set_bytes(3 << 20);
    use.set_peak_bytes(5 << 20);
  }

  EXPECT_NE(StatusText(job).find("\n\nmemory now (and peak)\n"
                                 "RANK  PARAMETERS         RESERVED\n"
                                 "1     3.0 MiB (5.0 MiB)  3.0 MiB (5.0 MiB)\n"),
            std::string::npos)
      << StatusText(job);
}

TEST(StatusText, ShowsGoodputWaitsAndExits) {
  v1::Job job = SampleJob();
  job.set_unreachable(true);
  job.mutable_goodput()->set_total_s(10);
  job.mutable_goodput()->set_train_s(9);
  job.mutable_ranks(0)->set_waits_in("all-reduce 17 (64 x fp32)");
  job.mutable_ranks(0)->set_phase_s(12);
  job.mutable_ranks(1)->set_straggler(true);
  job.mutable_ranks(1)->set_compute_s(0.5);
  job.mutable_ranks(1)->set_wait_share(0.25);
  job.mutable_ranks(1)->set_exit("killed by signal 9 (SIGKILL)");
  job.mutable_ranks(1)->set_max_rss_bytes(uint64_t{3} << 30);
  job.mutable_ranks(1)->set_user_s(40);
  job.mutable_ranks(1)->set_system_s(2.5);

  std::string text = StatusText(job);

  EXPECT_NE(text.find("RUNNING, none of its hosts can be reached\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  goodput     90.0 % ("), std::string::npos) << text;
  EXPECT_NE(text.find("0     h1    train              12 s  40         -        -       0.2 s       100  "
                      "all-reduce 17 (64 x fp32)\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("1     h1    train (straggler)  -     39         0.500 s  25 %    0.2 s       101  -            "
                      "              killed by signal 9 (SIGKILL), 3.0 GiB, 42.5 s of CPU\n"),
            std::string::npos)
      << text;
}

TEST(Summary, OfASuccess_ShowsLossSpeedAndPaths) {
  v1::Job job = SampleJob();
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  job.set_reason("");
  job.set_last_step(2);
  job.set_started_unix_ms(1000);
  job.set_finished_unix_ms(3000);
  *job.add_checkpoints() = CheckpointEvent(1, 2).checkpoint();
  RunStats stats;
  stats.Add(StepEvent(1, 1, 5.0));
  stats.Add(EvalEvent(2, 1, 4.5));

  EXPECT_EQ(Summary({.job = job, .stats = stats, .traits = {}, .logs_place = "in /logs", .last_lines = {}}),
            "SUCCEEDED  tiny (k3x7q2ab)\n"
            "  steps       2 of 100 in 2.0 s\n"
            "  tokens/s    2.00k over 1.00k tokens\n"
            "  loss        5.0000 at step 1, 5.0000 at step 1; evaluation 4.5000 at step 1\n"
            "  restarts    1\n"
            "  checkpoint  /runs/x/step-2 (step 2, 3.0 MiB)\n"
            "  run folder  /runs/tiny\n"
            "  metrics     /runs/tiny/metrics.jsonl\n"
            "  logs        in /logs\n");
}

TEST(Summary, OfAFailure_EndsWithLastLinesOfTheFailedRank) {
  v1::Job job = SampleJob();
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_reason("rank 1 exited with code 1");

  std::string text =
      Summary({.job = job, .stats = {}, .traits = {}, .logs_place = "in /logs", .last_lines = {"boom\x1b"}});

  EXPECT_NE(text.find("FAILED  tiny (k3x7q2ab): rank 1 exited with code 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("last lines of rank 1:\n  boom\\x1b\n"), std::string::npos) << text;
}

TEST(Summary, OfAFailedLastSave_NamesTheUnsavedSteps) {
  v1::Job job = SampleJob();
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_reason("the last save failed: /runs is full");
  *job.add_checkpoints() = CheckpointEvent(1, 30).checkpoint();

  std::string text = Summary({.job = job, .stats = {}, .traits = {}, .logs_place = "in /logs", .last_lines = {}});

  EXPECT_NE(text.find("FAILED  tiny (k3x7q2ab): the last save failed: /runs is full\n"), std::string::npos) << text;
  EXPECT_NE(text.find("(step 30, 3.0 MiB); steps 31 to 40 are not in any checkpoint\n"), std::string::npos) << text;
}

TEST(StatusText, FitsSixtyColumnsAndEscapesPaths) {
  v1::Job job = SampleJob();
  job.mutable_spec()->mutable_checkpoint()->set_dir("/runs/\x1b]0;owned\a");
  job.mutable_ranks(1)->set_exit("killed by signal 9 (SIGKILL), and this text is long, so that it is wrapped");

  std::string text = StatusText(job, 60);

  for (absl::string_view line : absl::StrSplit(text, '\n')) EXPECT_LE(line.size(), 60u) << text;
  EXPECT_NE(text.find("  run folder  /runs/\\x1b]0;owned\\x07\n"), std::string::npos) << text;
}

TEST(FailedRank, IsNamedByTheReason_ElseTheFirstThatFailed) {
  v1::Job job = SampleJob();
  EXPECT_EQ(FailedRank(job), -1);
  job.mutable_ranks(0)->set_exit("exit code 0");
  job.mutable_ranks(1)->set_exit("killed by signal 9 (SIGKILL)");
  EXPECT_EQ(FailedRank(job), 1);
  job.set_reason("rank 0: out of memory");
  EXPECT_EQ(FailedRank(job), 0);
  job.set_reason("rank 1 on w1 exited with code 1: RuntimeError: no answer of rank 0");
  EXPECT_EQ(FailedRank(job), 1);
  job.set_reason("rank 12 is none of ours");
  EXPECT_EQ(FailedRank(job), 1);
}

TEST(ExitCodes, FollowStateAndStatus) {
  EXPECT_EQ(ExitCodeOf(v1::JOB_STATE_SUCCEEDED), 0);
  EXPECT_EQ(ExitCodeOf(v1::JOB_STATE_FAILED), 1);
  EXPECT_EQ(ExitCodeOf(v1::JOB_STATE_CANCELLED), 130);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::PermissionDeniedError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("")), 1);
}

}  // namespace
}  // namespace trainyard::client
