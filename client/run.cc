// trainctl run: trains a job, or runs its command, and shows it until it ends.
#include <memory>

#include "client/commands.h"
#include "client/run_job.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

absl::StatusOr<LoadedJob> LoadFile(const JobOptions& options, bool on_this_machine) {
  const JobInput input{.file = options.file, .overrides = options.overrides};
  ASSIGN_OR_RETURN(LoadedJob loaded, LoadJob(input, on_this_machine));
  RETURN_IF_ERROR(ProblemsStatus(input, loaded.problems));
  return loaded;
}

}  // namespace

void AddRun(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto job = std::make_shared<JobOptions>();
  auto options = std::make_shared<RunJobOptions>();
  CLI::App* verb = app.add_subcommand("run", "Train a job and show it until it ends");
  AddJobOptions(*verb, job.get());
  AddAllowDataChange(*verb, job.get());
  verb->add_flag("--resume", options->resume,
                 "Resume from the newest checkpoint in checkpoint.dir, or in the newest ./trainyard-runs/<name>-*");
  AddAllowFreshStart(*verb, &options->allow_fresh_start);
  AddJson(*verb, &options->json, "Print one JSON object per line on standard output");
  AddReconnectFor(*verb, &options->reconnect);
  verb->footer(
      "Without --coordinator, it starts a private coordinator and worker daemon for this job, with one slot per\n"
      "rank, and stops them when the job ends. Ctrl-C cancels the job and waits for its end; a second Ctrl-C\n"
      "kills it immediately, or with --coordinator ends trainctl without waiting. If the terminal is closed\n"
      "(SIGHUP), the job and its daemons continue; the file `watch` in the run folder contains the command\n"
      "that shows the job again.\n\n"
      "Examples:\n"
      "  trainctl run configs/jobs/stdlib.yaml\n"
      "  trainctl run configs/jobs/lab-tiny.yaml --set train.steps=50 --set resources.ranks=4\n"
      "  trainctl run configs/jobs/stdlib.yaml --resume --json > events.jsonl");
  verb->callback([&globals, job, options, chosen] {
    options->load = [job](bool on_this_machine) { return LoadFile(*job, on_this_machine); };
    *chosen = [&globals, options] { return RunJob(globals, *options); };
  });
}

}  // namespace trainyard::client
