#include "client/progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/job_calls.h"
#include "client/layout_view.h"
#include "client/live_line.h"
#include "client/output.h"
#include "client/text.h"

namespace trainyard::client {
namespace {

constexpr size_t kNoticeBytes = 2000;

// Indents all lines but the first of a text from another program, so that none looks like a message of trainctl.
std::string Indented(absl::string_view text) {
  return absl::StrReplaceAll(text.substr(0, kNoticeBytes), {{"\n", "\n  "}});
}

std::string CommandText(const v1::Command& command) {
  return absl::StrJoin(command.argv(), " ",
                       [](std::string* out, const std::string& argument) { out->append(ShellWord(argument)); });
}

class TextProgress final : public Progress {
 public:
  TextProgress(FILE* stream, const TerminalTraits& traits, bool own_daemons)
      : terminal_(stream, traits), own_daemons_(own_daemons) {}

  void Start(const v1::Job& job, const std::vector<std::string>& warnings) override {
    const v1::JobSpec& spec = job.spec();
    steps_total_ = spec.train().steps();
    std::string work = HasHiddenSpec(job)   ? std::string()
                       : spec.has_probe()   ? std::string(", a probe of hosts")
                       : spec.has_command() ? absl::StrCat(", command ", CommandText(spec.command()))
                                            : absl::StrCat(", ", steps_total_, " steps, in ", spec.checkpoint().dir());
    terminal_.Print(absl::StrCat("job ", job.job_id(), " (", spec.name(), "): ", RanksText(job),
                                 spec.resources().ranks() == 1 ? " rank" : " ranks", work));
    if (const std::string strategy = StrategyLine(job); !strategy.empty()) {
      terminal_.Print(absl::StrCat("  strategy: ", strategy));
    }
    for (const v1::ResolvedKey& decision : job.decisions()) {
      terminal_.Print(absl::StrCat("  ", decision.key(), " = ", decision.value(), "  (", decision.reason(), ")"));
    }
    for (const std::string& warning : warnings) terminal_.Print(absl::StrCat("warning: ", warning), Style::kWarning);
  }

  void Event(const v1::Event& event) override {
    stats_.Add(event);
    switch (event.kind_case()) {
      case v1::Event::kState:
        State(event.state());
        break;
      case v1::Event::kStep:
        Step(event.step(), absl::FromUnixMillis(event.time_unix_ms()));
        break;
      case v1::Event::kEval:
        terminal_.Print(absl::StrFormat("evaluation at step %d: loss %.4f, perplexity %.4g (%s)", event.eval().step(),
                                        event.eval().loss(), std::exp(event.eval().loss()),
                                        DurationText(absl::Seconds(event.eval().seconds()))));
        break;
      case v1::Event::kCheckpoint:
        terminal_.Print(absl::StrCat("checkpoint of step ", event.checkpoint().step(), " saved: ",
                                     event.checkpoint().path(), " (", BytesText(event.checkpoint().size_bytes()), ")"));
        break;
      case v1::Event::kNotice:
        // Only the user of this program can have submitted a job of its own daemons.
        if (own_daemons_ && absl::StartsWith(event.notice().text(), "submit requested by ")) break;
        Notice(event.notice().level(), event.notice().text());
        break;
      case v1::Event::kProbe:
        terminal_.Print(absl::StrFormat("rank %d on %s: %.0f GFLOP/s, all-reduce %s for 8 bytes, %s/s",
                                        event.probe().rank(), event.probe().host(), event.probe().matmul_gflops(),
                                        DurationText(absl::Seconds(event.probe().all_reduce_latency_s())),
                                        BytesText(static_cast<uint64_t>(event.probe().all_reduce_bytes_per_s()))));
        break;
      case v1::Event::KIND_NOT_SET:
        break;  // an event kind of a newer coordinator
    }
  }

  void Notice(absl::string_view level, absl::string_view text) override {
    // The same sentence often arrives as a notice and as the reason of the resulting state.
    if (!last_text_.empty() && text == last_text_) return;
    last_text_ = std::string(text);
    std::string prefix = level == "info" ? "" : absl::StrCat(level, ": ");
    const Style style = level == "warning" ? Style::kWarning : level == "error" ? Style::kBad : Style::kPlain;
    terminal_.Print(absl::StrCat(prefix, Indented(text)), style);
  }

  void Message(absl::string_view text) override { terminal_.Message(stderr, absl::StrCat("trainctl: ", text)); }

  void Output(const v1::LogLine& line) override {
    terminal_.Print(absl::StrCat("rank ", line.rank(), ": ", LogLineForTerminals(line.text())));
  }

  void Done(const v1::Job& job, const std::string& details, int) override {
    terminal_.ClearStatus();
    const Style style = job.state() == v1::JOB_STATE_SUCCEEDED ? Style::kGood
                        : job.state() == v1::JOB_STATE_FAILED  ? Style::kBad
                                                               : Style::kWarning;
    const size_t head = details.find('\n');
    terminal_.Print("");
    terminal_.Print(details.substr(0, head), style);
    if (head != std::string::npos) terminal_.Print(details.substr(head + 1));
  }

 private:
  void State(const v1::StateChange& change) {
    std::string name = absl::AsciiStrToLower(StateName(change.state()));
    // The private daemon attaches within milliseconds; the reasons until then are not useful.
    if (own_daemons_ && change.state() == v1::JOB_STATE_QUEUED) return terminal_.Status(name);
    const bool repeated = change.reason().empty() || change.reason() == last_text_;
    if (!repeated) last_text_ = change.reason();
    // Some reasons begin with the name of the state.
    absl::string_view reason = change.reason();
    absl::ConsumePrefix(&reason, absl::StrCat(name, ": "));
    terminal_.Print(repeated ? name : absl::StrCat(name, ": ", Indented(reason)));
    if (change.state() != v1::JOB_STATE_RUNNING) terminal_.Status(name);
  }

  void Step(const v1::StepReport& step, absl::Time time) {
    if (!terminal_.traits().is_terminal) {
      if (pacer_.ShouldPrint(step.step(), steps_total_, time)) terminal_.Print(StepLine(step, steps_total_, stats_));
      return;
    }
    // Redraw at most ten times a second; always show the last step.
    constexpr absl::Duration kRedraw = absl::Milliseconds(100);
    const absl::Duration since = time - drawn_at_;  // negative: the clock of the coordinator was set back
    if (since >= absl::ZeroDuration() && since < kRedraw && step.step() != steps_total_) return;
    drawn_at_ = time;
    TerminalTraits now = terminal_.traits();
    now.columns = terminal_.columns();
    terminal_.Status(LiveLine(step, steps_total_, stats_, now));
  }

  Terminal terminal_;
  const bool own_daemons_;
  LinePacer pacer_;
  std::string last_text_;  // the sentence printed last
  uint64_t steps_total_ = 0;
  absl::Time drawn_at_ = absl::InfinitePast();
};

class JsonProgress final : public Progress {
 public:
  explicit JsonProgress(FILE* stream) : stream_(stream) {}

  void Start(const v1::Job& job, const std::vector<std::string>&) override { WriteLine(JobLine(job)); }
  void Event(const v1::Event& event) override {
    stats_.Add(event);
    WriteLine(EventLine(event));
  }
  void Notice(absl::string_view level, absl::string_view text) override { WriteLine(NoticeLine(level, text)); }
  void Message(absl::string_view text) override { Say(text); }
  void Output(const v1::LogLine& line) override { WriteLine(OutputLine(line)); }
  void Done(const v1::Job& job, const std::string&, int exit_code) override {
    WriteLine(DoneLine(job, stats_, exit_code));
  }

 private:
  void WriteLine(const std::string& line) { WriteNow(stream_, absl::StrCat(JsonForTerminals(line), "\n")); }

  FILE* stream_;
};

}  // namespace

bool LinePacer::ShouldPrint(uint64_t step, uint64_t steps_total, absl::Time time) {
  const absl::Duration since = time - printed_at_;
  const bool is_far = step - printed_step_ >= std::max<uint64_t>(1, steps_total / 20);
  const bool was_set_back = since < absl::ZeroDuration();  // the clock of the coordinator
  const bool print = step == steps_total || printed_step_ == 0 || was_set_back || since >= absl::Seconds(5) ||
                     (is_far && since >= absl::Milliseconds(500));
  if (print) {
    printed_step_ = step;
    printed_at_ = time;
  }
  return print;
}

std::string StepLine(const v1::StepReport& step, uint64_t steps_total, const RunStats& stats) {
  const std::string total = steps_total > 0 ? absl::StrCat("/", steps_total) : "";
  const std::string loss = step.has_loss() ? absl::StrFormat("  loss %.4f", step.loss()) : "";
  std::string line = absl::StrFormat("step %d%s%s  lr %.1e  %s tokens/s", step.step(), total, loss, step.lr(),
                                     Amount(stats.RecentTokensPerSecond()));
  absl::optional<absl::Duration> time_left = stats.TimeLeft(steps_total);
  if (time_left.has_value() && step.step() < steps_total) absl::StrAppend(&line, "  ETA ", DurationText(*time_left));
  return line;
}

std::unique_ptr<Progress> NewTextProgress(FILE* stream, const TerminalTraits& traits, bool own_daemons) {
  return std::make_unique<TextProgress>(stream, traits, own_daemons);
}

std::unique_ptr<Progress> NewJsonProgress(FILE* stream) { return std::make_unique<JsonProgress>(stream); }

}  // namespace trainyard::client
