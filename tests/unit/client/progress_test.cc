// The output of run and watch, with and without a terminal.
#include "client/progress.h"

#include <gtest/gtest.h>
#include <stdio.h>

#include "absl/strings/str_cat.h"
#include "client/live_line.h"
#include "tests/unit/client/events.h"

namespace trainyard::client {
namespace {

// A FILE whose text is stored in memory.
class MemoryStream {
 public:
  MemoryStream() : stream_(open_memstream(&data_, &size_)) {}
  ~MemoryStream() {
    fclose(stream_);
    free(data_);
  }
  FILE* stream() { return stream_; }
  std::string text() {
    fflush(stream_);
    return std::string(data_, size_);
  }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
  FILE* stream_;
};

v1::Job TenSteps() {
  v1::Job job;
  job.set_job_id("k3x7q2ab");
  job.mutable_spec()->set_name("tiny");
  job.mutable_spec()->mutable_resources()->set_ranks(2);
  job.mutable_spec()->mutable_train()->set_steps(10);
  job.mutable_spec()->mutable_train()->mutable_precision()->set_param(v1::PRECISION_FP32);
  job.mutable_spec()->mutable_parallel()->set_data(v1::DATA_PARALLEL_ZERO1);
  job.mutable_spec()->mutable_checkpoint()->set_dir("/runs/tiny");
  return job;
}

TEST(TextProgress, PrintsEveryEvent_ButStepsAtMostTwiceASecond) {
  MemoryStream out;
  auto progress = NewTextProgress(out.stream(), {}, /*own_daemons=*/false);

  progress->Start(TenSteps(), {"careful"});
  progress->Event(StateEvent(1, v1::JOB_STATE_RUNNING, "all 2 ranks are ready"));
  for (uint64_t step = 1; step <= 10; ++step) {
    progress->Event(
        StepEvent(1 + step, step, 5.0 - 0.1 * static_cast<double>(step), 0.5, static_cast<int64_t>(step) * 200));
  }
  progress->Event(EvalEvent(12, 10, 4.2));
  progress->Event(CheckpointEvent(13, 10));
  progress->Notice("warning", "a rank \x1b[31mended");
  progress->Event(StateEvent(14, v1::JOB_STATE_SUCCEEDED));
  progress->Done(TenSteps(), "the summary", 0);

  EXPECT_EQ(out.text(),
            "job k3x7q2ab (tiny): 2 ranks, 10 steps, in /runs/tiny\n"
            "  strategy: zero1 on 2 ranks, fp32, auto\n"
            "warning: careful\n"
            "running: all 2 ranks are ready\n"
            "step 1/10  loss 4.9000  lr 0.0e+00  2.00k tokens/s  ETA 4.5 s\n"
            "step 4/10  loss 4.6000  lr 0.0e+00  2.00k tokens/s  ETA 3.0 s\n"
            "step 7/10  loss 4.3000  lr 0.0e+00  2.00k tokens/s  ETA 1.5 s\n"
            "step 10/10  loss 4.0000  lr 0.0e+00  2.00k tokens/s\n"
            "evaluation at step 10: loss 4.2000, perplexity 66.69 (0.2 s)\n"
            "checkpoint of step 10 saved: /runs/x/step-10 (3.0 MiB)\n"
            "warning: a rank \\x1b[31mended\n"
            "succeeded\n"
            "\n"
            "the summary\n");
}

TEST(TextProgress, WhoSubmittedAJob_IsShownOnlyIfTheDaemonsServeOthers) {
  v1::Event submitted;
  submitted.mutable_notice()->set_level("info");
  submitted.mutable_notice()->set_text("submit requested by the operator at 127.0.0.1:5012");
  MemoryStream own, shared;

  NewTextProgress(own.stream(), {}, /*own_daemons=*/true)->Event(submitted);
  NewTextProgress(shared.stream(), {}, /*own_daemons=*/false)->Event(submitted);

  EXPECT_EQ(own.text(), "");
  EXPECT_EQ(shared.text(), "submit requested by the operator at 127.0.0.1:5012\n");
}

TEST(TextProgress, ViewersSeeNoSpec) {
  MemoryStream out;
  v1::Job job;
  job.set_job_id("k3x7q2ab");
  job.mutable_spec()->set_name("tiny");
  job.mutable_spec()->mutable_resources()->set_ranks(2);

  NewTextProgress(out.stream(), {}, /*own_daemons=*/false)->Start(job, {});

  EXPECT_EQ(out.text(), "job k3x7q2ab (tiny): 2 ranks\n");
}

TEST(TextProgress, OnATerminal_StepsShareOneLine) {
  MemoryStream out;
  auto progress =
      NewTextProgress(out.stream(), {.is_terminal = true, .unicode = true, .colour = false, .columns = 42}, false);
  progress->Start(TenSteps(), {});
  std::string before = out.text();

  progress->Event(StepEvent(1, 1, 5.0, 0.5, 1000));
  progress->Event(StepEvent(2, 2, 4.0, 0.5, 1001));
  progress->Event(EvalEvent(3, 2, 4.5));

  EXPECT_EQ(out.text().substr(before.size()),
            "\r\x1b[K 10 %  step 1/10  loss 5.0000  ETA 4.5 s"
            "\r\x1b[Kevaluation at step 2: loss 4.5000, perplexity 90.02 (0.2 s)\n"
            " 10 %  step 1/10  loss 5.0000  ETA 4.5 s");
}

TEST(TextProgress, ClockThatWasSetBack_DoesNotFreezeTheLine) {
  MemoryStream out;
  auto progress = NewTextProgress(out.stream(), {.is_terminal = true, .columns = 42}, false);
  progress->Start(TenSteps(), {});

  progress->Event(StepEvent(1, 1, 5.0, 0.5, 1'000'000));
  progress->Event(StepEvent(2, 2, 4.0, 0.5, 1'000));

  EXPECT_NE(out.text().find("step 2/10"), std::string::npos);
}

TEST(TextProgress, ColoursWarningsAndTheEnd_IfSupported) {
  MemoryStream out;
  auto progress = NewTextProgress(out.stream(), {.is_terminal = true, .colour = true}, false);
  v1::Job job = TenSteps();
  job.set_state(v1::JOB_STATE_FAILED);

  progress->Notice("warning", "slow\nsucceeded");
  progress->Done(job, "FAILED  tiny\n  steps 3\n", 1);

  EXPECT_EQ(out.text(), "\x1b[33mwarning: slow\n  succeeded\x1b[0m\n\n\x1b[31mFAILED  tiny\x1b[0m\n  steps 3\n");
}

TEST(TextProgress, ReasonThatStartsWithItsState_IsNotRepeated) {
  MemoryStream out;
  auto progress = NewTextProgress(out.stream(), {}, false);

  progress->Event(StateEvent(1, v1::JOB_STATE_CANCELLED, "cancelled: interrupted"));

  EXPECT_EQ(out.text(), "cancelled: interrupted\n");
}

TEST(LiveLine, HasPercentBarStepLossSpeedAndTimeLeft_AndFitsSixtyColumns) {
  RunStats stats;
  for (uint64_t step = 1; step <= 120; ++step) stats.Add(StepEvent(step, step, 3.2145));
  v1::StepReport step = StepEvent(1, 120, 3.2145).step();

  EXPECT_EQ(LiveLine(step, 1200, stats, {.is_terminal = true, .columns = 100}),
            " 10 % ##......................  step 120/1200  loss 3.2145  2.00k tokens/s  ETA 9m00s  lr 0.0e+00");
  EXPECT_EQ(LiveLine(step, 1200, stats, {.is_terminal = true, .columns = 60}),
            " 10 % #.............  step 120/1200  loss 3.2145  ETA 9m00s");
  EXPECT_EQ(LiveLine(step, 1200, stats, {.is_terminal = true, .unicode = true, .colour = true, .columns = 60}),
            " 10 % \x1b[32m█\x1b[0m░░░░░░░░░░░░░  step 120/1200  loss 3.2145  ETA 9m00s");
  EXPECT_EQ(LiveLine(step, 1200, stats, {.is_terminal = true, .columns = 10}), " 10 %");
}

TEST(JsonProgress, EveryStep_IsOneLine_AndTheSummaryIsNotPrinted) {
  MemoryStream out;
  auto progress = NewJsonProgress(out.stream());

  progress->Start(TenSteps(), {});
  for (uint64_t step = 1; step <= 10; ++step) progress->Event(StepEvent(step, step, 1.0));
  progress->Done(TenSteps(), "not for programs", 0);

  std::string text = out.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 12);
  EXPECT_EQ(text.find("not for programs"), std::string::npos);
}

TEST(LinePacer, LongRun_IsPrintedEveryFiveSeconds) {
  LinePacer pacer;
  int printed = 0;
  for (uint64_t step = 1; step <= 100'000; ++step) {
    printed += pacer.ShouldPrint(step, 100'000, absl::FromUnixMillis(static_cast<int64_t>(step) * 10)) ? 1 : 0;
  }
  EXPECT_EQ(printed, 1 + 1000 / 5);  // 1,000 s: the first line, then one every 5 s
}

TEST(LinePacer, ClockThatWasSetBack_DoesNotStopTheOutput) {
  LinePacer pacer;
  const absl::Time begin = absl::FromUnixSeconds(10'000);
  EXPECT_TRUE(pacer.ShouldPrint(1, 100'000, begin));
  EXPECT_TRUE(pacer.ShouldPrint(2, 100'000, begin - absl::Hours(1)));
  EXPECT_FALSE(pacer.ShouldPrint(3, 100'000, begin - absl::Hours(1) + absl::Seconds(1)));
  EXPECT_TRUE(pacer.ShouldPrint(4, 100'000, begin - absl::Hours(1) + absl::Seconds(5)));
}

}  // namespace
}  // namespace trainyard::client
