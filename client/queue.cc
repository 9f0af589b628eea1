// trainctl queue: the waiting jobs in the order in which they would start, and what each namespace uses.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/job_calls.h"
#include "client/output.h"
#include "client/queue_view.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct QueueOptions {
  std::string name;  // of a namespace; empty: all
  uint32_t limit = 0;
  bool json = false;
};

absl::Status Queue(const Globals& globals, const QueueOptions& options) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  ASSIGN_OR_RETURN(v1::GetQueueResponse queue, GetQueue(*connection, options.name, options.limit));
  if (options.limit > 0 && queue.total() > static_cast<uint32_t>(queue.jobs_size())) {
    Say(absl::StrCat("only the first ", queue.jobs_size(), " of ", queue.total(), " waiting jobs are listed"));
  }
  if (!options.json) {
    Print(QueueText(queue, OutputColumns()));
    return absl::OkStatus();
  }
  for (const v1::QueuedJob& job : queue.jobs()) PrintJson(QueuedJobJson(job));
  for (const v1::NamespaceUse& use : queue.namespaces()) PrintJson(NamespaceJson(use));
  return absl::OkStatus();
}

}  // namespace

void AddQueue(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<QueueOptions>();
  CLI::App* verb = app.add_subcommand("queue", "List the waiting jobs in order, with reasons and forecasts");
  verb->add_option("--namespace", options->name, "Only jobs of this namespace")->type_name("NAME");
  verb->add_option("--limit", options->limit, "List only the first N; 0: all")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000));
  AddJson(*verb, &options->json, "One JSON object per line: one for each job, then one for each namespace");
  verb->footer(
      "START is a forecast from the steps and the step times of the jobs that run, if nothing else happens. It\n"
      "changes when jobs are submitted, fail or end early.\n\n"
      "Examples:\n  trainctl queue\n  trainctl queue --namespace research --json");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] { return ReportStatus(Queue(globals, *options), options->json); };
  });
}

}  // namespace trainyard::client
