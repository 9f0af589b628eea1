// trainctl cancel: stops a job.
#include <cstdio>
#include <memory>

#include "client/commands.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/job_calls.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct CancelOptions {
  std::string job_id;
  std::string reason = "cancelled by trainctl cancel";
  bool save = false;
  bool json = false;
};

absl::Status Cancel(const Globals& globals, const CancelOptions& options) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  ASSIGN_OR_RETURN(v1::Job job, CancelJob(*connection, options.job_id, options.reason, options.save));
  if (options.json) {
    puts(JobJson(job).c_str());
  } else if (IsFinal(job.state())) {
    printf("job %s is %s\n", job.job_id().c_str(), StateName(job.state()).c_str());
  } else {
    printf("job %s is stopping; trainctl watch %s shows its end\n", job.job_id().c_str(), job.job_id().c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddCancel(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<CancelOptions>();
  CLI::App* verb = app.add_subcommand("cancel", "Stop a job; it ends at its next step");
  verb->add_option("job", options->job_id, "Id of the job")->required();
  verb->add_option("--reason", options->reason, "Why, for those who ask later");
  verb->add_flag("--save", options->save, "Save before; where that fails the job goes on");
  verb->add_flag("--json", options->json, "Print the job as a JSON object");
  verb->footer(
      "Returns once the wish is stored. Cancelling a job that has ended is no error. With --save the job must be "
      "making "
      "steps.\n\nExamples:\n  trainctl cancel k3x7q2ab\n  trainctl cancel k3x7q2ab --save");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] {
      absl::Status status = Cancel(globals, *options);
      return ExitOf(status, options->json);
    };
  });
}

}  // namespace trainyard::client
