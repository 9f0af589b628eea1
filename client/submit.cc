// trainctl submit: hands a job to a coordinator and returns.
#include <cstdio>
#include <memory>

#include "client/commands.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/job_calls.h"
#include "client/job_input.h"
#include "client/run_folder.h"
#include "common/files.h"
#include "common/ids.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct SubmitOptions {
  JobOptions job;
  bool resume = false;
  bool json = false;
};

absl::Status Submit(const Globals& globals, const SubmitOptions& options) {
  const JobInput input{.file = options.job.file, .overrides = options.job.overrides};
  ASSIGN_OR_RETURN(LoadedJob loaded, LoadJob(input, /*on_this_machine=*/false));
  RETURN_IF_ERROR(ProblemsStatus(input, loaded.problems));
  for (const Problem& warning : loaded.problems.Warnings()) fprintf(stderr, "%s\n", warning.ToString().c_str());
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  v1::SubmitRequest request;
  *request.mutable_spec() = loaded.spec;
  request.set_job_id(RandomId(8));
  request.set_default_run_root(DefaultRunRoot(WorkingDirectory()));
  request.set_resume(options.resume);
  std::string told;
  absl::Status chosen = ChooseRunFolder(&request, &told);
  if (!told.empty()) fprintf(stderr, "%s\n", told.c_str());
  RETURN_IF_ERROR(chosen);
  ASSIGN_OR_RETURN(v1::SubmitResponse accepted, SubmitJob(*connection, request));
  v1::Job job;
  job.set_job_id(accepted.job_id());
  *job.mutable_spec() = accepted.resolved();
  *job.mutable_decisions() = accepted.decisions();
  *job.mutable_warnings() = accepted.warnings();
  if (options.json) {
    puts(JobLine(job).c_str());
    return absl::OkStatus();
  }
  // The id alone on standard output, for scripts: id=$(trainctl submit job.yaml).
  for (const v1::ResolvedKey& decision : accepted.decisions()) {
    fprintf(stderr, "  %s = %s  (%s)\n", decision.key().c_str(), decision.value().c_str(), decision.reason().c_str());
  }
  puts(accepted.job_id().c_str());
  return absl::OkStatus();
}

}  // namespace

void AddSubmit(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<SubmitOptions>();
  CLI::App* verb = app.add_subcommand("submit", "Hand a job to a coordinator and return; prints its id");
  AddJobOptions(*verb, &options->job);
  AddAllowDataChange(*verb, &options->job);
  verb->add_flag("--resume", options->resume, "Go on from the newest checkpoint in the run folder");
  verb->add_flag("--json", options->json, "Print the job as a JSON object");
  verb->footer(
      "Examples:\n"
      "  trainctl --coordinator 127.0.0.1:7070 submit configs/jobs/stdlib.yaml\n"
      "  trainctl watch $(trainctl submit job.yaml --set resources.ranks=8)");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] {
      absl::Status status = Submit(globals, *options);
      return ExitOf(status, options->json);
    };
  });
}

}  // namespace trainyard::client
