// trainctl list: the jobs of a coordinator, newest first.
#include <limits>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/job_calls.h"
#include "client/output.h"
#include "client/text.h"
#include "common/nearest_name.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct ListOptions {
  std::vector<std::string> states;
  std::string name;  // of a namespace; empty: all
  size_t limit = 0;  // 0: all
  bool json = false;
};

absl::StatusOr<std::vector<v1::JobState>> ParseStates(const std::vector<std::string>& arguments) {
  std::vector<v1::JobState> states;
  std::vector<std::string> names;
  for (int i = v1::JobState_MIN + 1; i <= v1::JobState_MAX; ++i) {
    names.push_back(absl::AsciiStrToLower(StateName(static_cast<v1::JobState>(i))));
  }
  for (const std::string& argument : arguments) {
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    if (!v1::JobState_Parse(absl::StrCat("JOB_STATE_", absl::AsciiStrToUpper(argument)), &state) ||
        state == v1::JOB_STATE_UNSPECIFIED) {
      std::string nearest = NearestName(argument, names);
      return absl::InvalidArgumentError(
          absl::StrCat("'", argument, "' is not a job state",
                       nearest.empty() ? "." : absl::StrCat("; did you mean '", nearest, "'?"),
                       " States: ", absl::StrJoin(names, ", ")));
    }
    states.push_back(state);
  }
  return states;
}

std::string Progress(const v1::Job& job) {
  // A script may report its steps, but not how many it will make.
  if (!job.spec().has_train()) return job.last_step() == 0 ? "-" : absl::StrCat(job.last_step());
  return absl::StrCat(job.last_step(), "/", job.spec().train().steps());
}

absl::Status ListJobs(const Globals& globals, const ListOptions& options) {
  ASSIGN_OR_RETURN(std::vector<v1::JobState> states, ParseStates(options.states));
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  // One more than requested shows whether there are more.
  const size_t max_jobs = options.limit == 0 ? std::numeric_limits<size_t>::max() : options.limit + 1;
  ASSIGN_OR_RETURN(std::vector<v1::Job> jobs, ListJobs(*connection, states, max_jobs, options.name));
  if (options.limit > 0 && jobs.size() > options.limit) {
    jobs.resize(options.limit);
    Say(absl::StrCat("only the newest ", options.limit, " are listed; there are more (--limit 0 lists all)"));
  }
  if (options.json) {
    for (const v1::Job& job : jobs) PrintJson(JobJson(job));
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows = {{"ID", "NAME", "STATE", "RANKS", "STEP", "RESTARTS", "AGE", "REASON"}};
  for (const v1::Job& job : jobs) {
    absl::Duration age = absl::Now() - absl::FromUnixMillis(job.submitted_unix_ms());
    rows.push_back({job.job_id(), Printable(job.spec().name(), 100), StateName(job.state()), RanksText(job),
                    Progress(job), absl::StrCat(job.restarts()), DurationText(age), Printable(job.reason(), 100)});
  }
  Print(Table(rows, OutputColumns()));
  return absl::OkStatus();
}

}  // namespace

void AddList(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<ListOptions>();
  CLI::App* verb = app.add_subcommand("list", "List jobs, newest first");
  verb->alias("ls")->alias("ps")->alias("jobs");
  verb->add_option("--state", options->states, "Only jobs in this state (may be repeated)")->allow_extra_args(false);
  verb->add_option("--namespace", options->name, "Only jobs of this namespace")->type_name("NAME");
  verb->add_option("--limit", options->limit, "List only the newest N; 0: all")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000));
  AddJson(*verb, &options->json, "One JSON object per line, one for each job");
  verb->footer("Examples:\n  trainctl list\n  trainctl list --state running --state queued --json");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] {
      absl::Status status = ListJobs(globals, *options);
      return ReportStatus(status, options->json);
    };
  });
}

}  // namespace trainyard::client
