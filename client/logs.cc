// trainctl logs: the output of a job's trainers.
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/find_job.h"
#include "client/log_cursor.h"
#include "client/output.h"
#include "client/text.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct LogsOptions {
  std::string job_id;
  std::vector<uint32_t> ranks = {};  // empty: all
  bool all_ranks = false;
  uint32_t tail = 0;
  bool follow = false;
  bool json = false;
  bool on_terminal = false;
  ReconnectOptions reconnect;
};

std::string LineText(const v1::LogLine& line, const LogsOptions& options) {
  if (options.json) {
    nlohmann::ordered_json json = {{"rank", line.rank()},
                                   {"generation", line.generation()},
                                   {"stream", line.is_stderr() ? "stderr" : "stdout"},
                                   {"text", line.text()}};
    return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  // The output of a single rank is shown without a prefix.
  return options.ranks.size() == 1 ? line.text() : absl::StrCat("rank ", line.rank(), ": ", line.text());
}

void ShowLine(const v1::LogLine& line, const LogsOptions& options) {
  if (options.json) {
    PrintJson(LineText(line, options));
  } else {
    PrintRaw(absl::StrCat(options.on_terminal ? LogLineForTerminals(LineText(line, options)) : LineText(line, options),
                          "\n"));
  }
  FlushOutput();
}

using OnLine = std::function<void(const v1::LogLine&)>;

// One complete Logs call.
absl::Status ReadLogs(Connection& connection, const LogsOptions& options, uint32_t tail, bool follow,
                      const OnLine& on_line) {
  v1::LogsRequest request;
  request.set_job_id(options.job_id);
  request.set_follow(follow);
  request.set_tail_lines(tail);
  for (uint32_t rank : options.ranks) request.add_ranks(rank);
  grpc::ClientContext context;
  ASSIGN_OR_RETURN(Connection::Stub stub, connection.Begin(context));
  auto reader = stub->Logs(&context, request);
  v1::LogLine line;
  while (reader->Read(&line)) {
    on_line(line);
    if (OutputFailed()) context.TryCancel();
  }
  grpc::Status status = reader->Finish();
  return OutputFailed() ? OutputStatus() : connection.ToStatus(status, context);
}

// After a lost connection: reads all stored output to find the position, then follows from there.
absl::Status ResumeLogs(Connection& connection, const LogsOptions& options, LogCursor& cursor, Retry& retry) {
  LogCursor::Search search = cursor.Resume();
  RETURN_IF_ERROR(
      ReadLogs(connection, options, 0, /*follow=*/false, [&](const v1::LogLine& line) { search.Add(line); }));
  Say("the coordinator answers again");
  retry.Answered();
  for (const v1::LogLine& line : search.NewLines()) ShowLine(line, options);
  return ReadLogs(connection, options, 0, /*follow=*/true, [&](const v1::LogLine& line) {
    if (!cursor.IsNew(line)) return;
    cursor.RecordShown(line);
    ShowLine(line, options);
  });
}

absl::Status Logs(const Globals& globals, LogsOptions options) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals, options.reconnect.connect_wait()));
  ASSIGN_OR_RETURN(options.job_id, FindJob(*connection, options.job_id));
  if (!options.follow) {
    return ReadLogs(*connection, options, options.tail, false,
                    [&](const v1::LogLine& line) { ShowLine(line, options); });
  }
  LogCursor cursor(options.tail);
  Retry retry(options.reconnect.retry);
  bool any_line_shown = false;
  absl::Status status = ReadLogs(*connection, options, options.tail, true, [&](const v1::LogLine& line) {
    any_line_shown = true;
    cursor.RecordShown(line);
    ShowLine(line, options);
  });
  // Before the first line, report immediately that the job's hosts are unreachable, as without --follow.
  if (!any_line_shown) return status;
  while (IsUnanswered(status)) {
    if (!retry.is_unanswered()) Say(absl::StrCat(status.message(), "; trying again"));
    absl::optional<absl::Duration> wait = retry.Failed(Clock::GetSteadyClock().TimeNow());
    if (!wait.has_value()) return status;
    absl::SleepFor(*wait);
    status = ResumeLogs(*connection, options, cursor, retry);
  }
  return status;
}

}  // namespace

void AddLogs(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<LogsOptions>();
  CLI::App* verb = app.add_subcommand("logs", "Show the output of a job's trainers");
  verb->alias("log");
  verb->add_option("job", options->job_id, kJobHelp)->required();
  verb->add_flag("-f,--follow", options->follow, "Keep printing new lines until the job ends");
  auto* ranks = verb->add_option("--rank", options->ranks,
                                 "Only this rank (may be repeated); default: rank 0, which reports for the whole job");
  ranks->allow_extra_args(false);
  verb->add_flag("--all-ranks", options->all_ranks, "All ranks")->excludes(ranks);
  // In the API, 0 means all lines.
  verb->add_option("--tail", options->tail, "Only the last N lines of each rank")
      ->check(CLI::Validator(
          [](const std::string& lines) {
            return lines.find_first_not_of('0') == std::string::npos
                       ? std::string("expected 1 or more lines; without --tail, all lines are shown")
                       : std::string();
          },
          "POSITIVE"));
  AddJson(*verb, &options->json, "One JSON object per line");
  AddReconnectFor(*verb, &options->reconnect);
  verb->footer("Examples:\n  trainctl logs k3x7q2ab -f\n  trainctl logs k3x7q2ab --rank 1 --tail 50");
  verb->callback([&globals, options, chosen] {
    if (options->ranks.empty() && !options->all_ranks) options->ranks = {0};
    options->on_terminal = OutputColumns() > 0;
    *chosen = [&globals, options] {
      absl::Status status = Logs(globals, *options);
      return ReportStatus(status, options->json);
    };
  });
}

}  // namespace trainyard::client
