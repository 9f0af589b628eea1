// trainctl submit: submits a job to a coordinator and returns.
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/job_calls.h"
#include "client/job_input.h"
#include "client/output.h"
#include "client/run_folder.h"
#include "common/files.h"
#include "common/ids.h"
#include "common/network.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct SubmitOptions {
  JobOptions job;
  bool resume = false;
  bool allow_fresh_start = false;
  std::string job_id;
  bool json = false;
};

// If the id could not be printed, reports it in the error, because the user could not find the job otherwise.
absl::Status CheckIdWasPrinted(const v1::Job& job) {
  FlushOutput();
  if (!OutputFailed()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(OutputStatus().message(), "; ", JobTitle(job), " was submitted"));
}

// Returns whether this machine is the only host of the cluster, so that the job's files must be here. Compares host
// names, because a loopback address may be a tunnel to another machine.
bool AllHostsAreThisMachine(Connection& connection) {
  char name[256] = {};
  absl::StatusOr<v1::ListHostsResponse> hosts = ListHosts(connection);
  if (!hosts.ok() || hosts->hosts().empty() || gethostname(name, sizeof name - 1) != 0) return false;
  return std::all_of(hosts->hosts().begin(), hosts->hosts().end(),
                     [&](const v1::HostStatus& host) { return host.name() == name; });
}

absl::Status Submit(const Globals& globals, const SubmitOptions& options) {
  const JobInput input{.file = options.job.file, .overrides = options.job.overrides};
  ASSIGN_OR_RETURN(LoadedJob loaded, LoadJob(input, /*on_this_machine=*/false));
  RETURN_IF_ERROR(ProblemsStatus(input, loaded.problems));
  PrintNotesAndWarnings(loaded);
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  const absl::optional<HostPort> address = SplitHostPort(globals.coordinator);
  if (address.has_value() && IsLoopbackHost(address->host) && AllHostsAreThisMachine(*connection)) {
    CheckFiles(&loaded);
    RETURN_IF_ERROR(ProblemsStatus(input, loaded.problems));
  }
  v1::SubmitRequest request;
  *request.mutable_spec() = loaded.spec;
  request.set_job_id(options.job_id.empty() ? RandomId(8) : options.job_id);
  request.set_default_run_root(DefaultRunRoot(WorkingDirectory()));
  request.set_resume(options.resume);
  request.set_allow_fresh_start(options.allow_fresh_start);
  std::string notice;
  absl::Status chosen = ChooseRunFolder(&request, /*on_this_machine=*/IsLocalAddress(globals.coordinator), &notice);
  if (!notice.empty()) SayUnprefixed(notice);
  // If the job was submitted before, the run folder may be refused because it has the files of that same job.
  if (!chosen.ok() && (options.job_id.empty() || !GetJob(*connection, options.job_id).ok())) return chosen;
  const absl::StatusOr<v1::SubmitResponse> submitted = SubmitJob(*connection, request);
  if (!submitted.ok()) {
    const std::string& id = request.job_id();
    return SubmitError(submitted.status(), id,
                       absl::StrCat("`trainctl status ", id, "` shows it, and `trainctl submit --job-id ", id,
                                    "` with the same job repeats the call without a second job"));
  }
  const v1::SubmitResponse& accepted = *submitted;
  v1::Job job;
  job.set_job_id(accepted.job_id());
  *job.mutable_spec() = accepted.resolved();
  *job.mutable_decisions() = accepted.decisions();
  *job.mutable_warnings() = accepted.warnings();
  if (options.json) {
    PrintJson(JobLine(job));
    return CheckIdWasPrinted(job);
  }
  // Print only the id on standard output, for scripts: id=$(trainctl submit job.yaml).
  for (const v1::ResolvedKey& decision : accepted.decisions()) {
    SayUnprefixed(absl::StrCat("  ", decision.key(), " = ", decision.value(), "  (", decision.reason(), ")"));
  }
  Print(absl::StrCat(accepted.job_id(), "\n"));
  return CheckIdWasPrinted(job);
}

}  // namespace

void AddSubmit(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<SubmitOptions>();
  CLI::App* verb = app.add_subcommand("submit", "Submit a job to a coordinator and print its id");
  AddJobOptions(*verb, &options->job);
  AddAllowDataChange(*verb, &options->job);
  verb->add_flag("--resume", options->resume, "Resume from the newest checkpoint in the run folder");
  AddAllowFreshStart(*verb, &options->allow_fresh_start);
  verb->add_option("--job-id", options->job_id,
                   "Id of the job, 8 to 32 characters of a-z and 0-9; a repeated call with it submits no second job");
  AddJson(*verb, &options->json, "Print the job as a JSON object");
  verb->footer(
      "Examples:\n"
      "  trainctl --coordinator 127.0.0.1:7070 submit configs/jobs/stdlib.yaml\n"
      "  trainctl watch $(trainctl submit job.yaml --set resources.ranks=8)\n"
      "  trainctl submit job.yaml --job-id nightly20261126");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] {
      absl::Status status = Submit(globals, *options);
      return ReportStatus(status, options->json);
    };
  });
}

}  // namespace trainyard::client
