// trainctl logs: the output of a job's trainers.
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct LogsOptions {
  std::string job_id;
  std::vector<uint32_t> ranks;
  uint32_t tail = 0;
  bool follow = false;
  bool json = false;
};

std::string LineText(const v1::LogLine& line, const LogsOptions& options) {
  if (options.json) {
    nlohmann::ordered_json json = {{"rank", line.rank()},
                                   {"generation", line.generation()},
                                   {"stream", line.is_stderr() ? "stderr" : "stdout"},
                                   {"text", line.text()}};
    return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  // One rank's output is shown as it was written.
  return options.ranks.size() == 1 ? line.text() : absl::StrCat("rank ", line.rank(), ": ", line.text());
}

absl::Status Logs(const Globals& globals, const LogsOptions& options) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  v1::LogsRequest request;
  request.set_job_id(options.job_id);
  request.set_follow(options.follow);
  request.set_tail_lines(options.tail);
  for (uint32_t rank : options.ranks) request.add_ranks(rank);
  grpc::ClientContext context;
  auto reader = connection->stub().Logs(&context, request);
  v1::LogLine line;
  while (reader->Read(&line)) {
    std::string text = absl::StrCat(LineText(line, options), "\n");
    fwrite(text.data(), 1, text.size(), stdout);
    fflush(stdout);
  }
  return connection->ToStatus(reader->Finish());
}

}  // namespace

void AddLogs(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<LogsOptions>();
  CLI::App* verb = app.add_subcommand("logs", "Show the output of a job's trainers");
  verb->add_option("job", options->job_id, "Id of the job")->required();
  verb->add_flag("-f,--follow", options->follow, "Go on until the job ends");
  verb->add_option("--rank", options->ranks, "Only this rank (repeat for several)")->allow_extra_args(false);
  verb->add_option("--tail", options->tail, "Only the last lines of each rank");
  verb->add_flag("--json", options->json, "One JSON object a line");
  verb->footer("Examples:\n  trainctl logs k3x7q2ab -f\n  trainctl logs k3x7q2ab --rank 1 --tail 50");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] {
      absl::Status status = Logs(globals, *options);
      return status.ok() ? kExitDone : Fail(status);
    };
  });
}

}  // namespace trainyard::client
