// trainctl why: the decisions that led to the state of a job.
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/chain.h"
#include "client/commands.h"
#include "client/find_job.h"
#include "client/job_calls.h"
#include "client/output.h"
#include "common/limits.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

// More events than are stored for a job.
constexpr uint32_t kEventsAll = 10'000;
static_assert(kEventsAll > limits::kDurableEvents);

struct WhyOptions {
  std::string job_id;
  bool json = false;
};

absl::Status Why(const Globals& globals, const WhyOptions& options) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  ASSIGN_OR_RETURN(const std::string id, FindJob(*connection, options.job_id));
  ASSIGN_OR_RETURN(v1::Job job, GetJob(*connection, id));
  v1::ListEventsRequest request;
  request.set_job_id(id);
  request.set_limit(kEventsAll);
  ASSIGN_OR_RETURN(v1::ListEventsResponse events, ListEvents(*connection, request));
  if (options.json) {
    PrintJson(WhyJson(job, events));
  } else {
    Print(WhyText(job, events, {.zone = absl::LocalTimeZone(), .now = absl::Now(), .job_ids = false}));
  }
  return absl::OkStatus();
}

}  // namespace

void AddWhy(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<WhyOptions>();
  CLI::App* verb = app.add_subcommand("why", "Explain the state of a job: its decisions, with times and causes");
  verb->add_option("job", options->job_id, kJobHelp)->required();
  AddJson(*verb, &options->json, "One JSON object");
  verb->footer(
      "Shows for each generation where it was placed, why it ended, and each decision with its rule in brackets.\n\n"
      "Examples:\n  trainctl why k3x7q2ab\n"
      "  trainctl why k3x7q2ab --json | jq -r '.chain[] | select(.rule == \"hang\") | .text'");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] { return ReportStatus(Why(globals, *options), options->json); };
  });
}

}  // namespace trainyard::client
