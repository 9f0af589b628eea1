// trainctl cancel: cancels a job.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/find_job.h"
#include "client/job_calls.h"
#include "client/output.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct CancelOptions {
  std::string job_id;
  std::string reason = "cancelled by trainctl cancel";
  bool save = false;
  uint64_t if_version = 0;
  bool json = false;
};

absl::Status Cancel(const Globals& globals, const CancelOptions& options) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  v1::CancelRequest request;
  ASSIGN_OR_RETURN(*request.mutable_job_id(), FindJob(*connection, options.job_id));
  request.set_reason(options.reason);
  request.set_save(options.save);
  request.set_expected_version(options.if_version);
  ASSIGN_OR_RETURN(v1::Job job, CancelJob(*connection, request));
  if (options.json) {
    PrintJson(JobJson(job));
  } else if (IsFinal(job.state())) {
    Print(absl::StrCat(JobTitle(job), " is ", StateName(job.state()), "\n"));
  } else if (options.save && job.state() == v1::JOB_STATE_RUNNING) {
    Print(absl::StrCat(JobTitle(job), " will be cancelled once its script has saved; trainctl watch ", job.job_id(),
                       " shows its end\n"));
  } else {
    Print(absl::StrCat(JobTitle(job), " is stopping; trainctl watch ", job.job_id(), " shows its end\n"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddCancel(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<CancelOptions>();
  CLI::App* verb =
      app.add_subcommand("cancel", "Cancel a job at its next step; without --save, steps since its last save are lost");
  verb->add_option("job", options->job_id, kJobHelp)->required();
  verb->add_option("--reason", options->reason, "Reason, recorded in the events");
  verb->add_flag("--save", options->save,
                 "Save first; if that save fails, the job continues. A script continues until it has saved");
  AddIfVersion(*verb, &options->if_version);
  AddJson(*verb, &options->json, "Print the job as a JSON object");
  verb->footer(
      "Without --save, steps since the last checkpoint are lost; with --save the job must be training, and a\n"
      "script must save on request (docs/python.md). The run folder and its checkpoints are kept in both cases.\n"
      "Returns once the request is stored. Cancelling a job that has ended is not an error.\n\n"
      "Examples:\n  trainctl cancel k3x7q2ab\n  trainctl cancel k3x7q2ab --save");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] {
      absl::Status status = Cancel(globals, *options);
      return ReportStatus(status, options->json);
    };
  });
}

}  // namespace trainyard::client
