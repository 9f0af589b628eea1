// trainctl goodput: how the ranks of a job spent their time.
#include <memory>
#include <nlohmann/json.hpp>

#include "client/commands.h"
#include "client/exit_code.h"
#include "client/find_job.h"
#include "client/goodput_view.h"
#include "client/job_calls.h"
#include "client/output.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct GoodputOptions {
  std::string job_id;
  bool json = false;
};

absl::Status Goodput(const Globals& globals, const GoodputOptions& options) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  ASSIGN_OR_RETURN(const std::string id, FindJob(*connection, options.job_id));
  ASSIGN_OR_RETURN(v1::Job job, GetJob(*connection, id));
  if (!options.json) {
    Print(GoodputText(job, OutputColumns()));
    return absl::OkStatus();
  }
  nlohmann::ordered_json json = {{"id", job.job_id()},
                                 {"name", job.spec().name()},
                                 {"state", StateName(job.state())},
                                 {"ranks", job.spec().resources().ranks()}};
  json.update(nlohmann::ordered_json::parse(GoodputJson(job.goodput())));
  PrintJson(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  return absl::OkStatus();
}

}  // namespace

void AddGoodput(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<GoodputOptions>();
  CLI::App* verb = app.add_subcommand("goodput", "Show how the ranks of a job spent their time");
  verb->add_option("job", options->job_id, kJobHelp)->required();
  AddJson(*verb, &options->json, "One JSON object");
  verb->footer(
      "Every second of every rank, from submission to the job's end, counts in exactly one part.\n\n"
      "Examples:\n  trainctl goodput k3x7q2ab\n  trainctl goodput k3x7q2ab --json | jq .shares.lost");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] { return ReportStatus(Goodput(globals, *options), options->json); };
  });
}

}  // namespace trainyard::client
