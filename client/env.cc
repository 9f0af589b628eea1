// trainctl env: the versions, hardware, limits and settings that matter to jobs on this host, for reports and for
// users who ask why a job is slow or does not start.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/env_view.h"
#include "client/exit_code.h"
#include "client/host_facts.h"
#include "client/hosts_view.h"
#include "client/job_calls.h"
#include "client/output.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

using Json = nlohmann::ordered_json;

struct EnvOptions {
  std::string part;  // empty: everything
  bool json = false;
};

std::string EnvLine(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Prints one part of the facts. Runs in a process of its own, which is killed if a library hangs.
absl::Status PrintPart(const Globals& globals, const std::string& part) {
  ASSIGN_OR_RETURN(const Json json, ReadHostPart(part, globals.coordinator));
  PrintRaw(absl::StrCat(EnvLine(json), "\n"));
  return absl::OkStatus();
}

absl::StatusOr<v1::ListHostsResponse> HostsOfCluster(const Globals& globals) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  return ListHosts(*connection);
}

absl::Status Env(const Globals& globals, const EnvOptions& options) {
  if (!options.part.empty()) return PrintPart(globals, options.part);
  const HostFacts facts = ReadHostFacts({.binaries = BinaryFolder(), .coordinator = globals.coordinator});
  Json json = options.json ? FactsJson(facts) : Json();
  if (!options.json) Print(FactsText(facts, OutputColumns()));
  absl::Status status;
  if (!globals.coordinator.empty()) {
    FlushOutput();  // so that the local part is shown even if the coordinator does not answer
    const absl::StatusOr<v1::ListHostsResponse> hosts = HostsOfCluster(globals);
    status = hosts.status();
    if (!hosts.ok()) {
      json["hosts_error"] = std::string(status.message());
    } else if (options.json) {
      json["hosts"] = Json::array();
      for (const v1::HostStatus& host : hosts->hosts()) json["hosts"].push_back(Json::parse(HostJson(host)));
    } else {
      Print(absl::StrCat("\nhosts of ", globals.coordinator, "\n", InventoryTable(*hosts, OutputColumns())));
    }
  }
  if (options.json) PrintJson(EnvLine(json));
  return status;
}

}  // namespace

void AddEnv(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<EnvOptions>();
  CLI::App* verb = app.add_subcommand("env", "Show versions, hardware, limits and settings of this host");
  AddJson(*verb, &options->json, "One JSON object; what is not known is null");
  verb->add_option("--part", options->part)->group("");
  verb->footer(
      "Asks trainyard-trainer for the matrix kernels that a rank would use; asks GPU libraries in a process of its\n"
      "own, so that none of them can block this command. With --coordinator also lists the hosts of the cluster, and\n"
      "chooses the network interface as a worker daemon of that coordinator would. Warnings do not change the exit\n"
      "code. Values of variables that may be secrets are not shown.\n\n"
      "Examples:\n  trainctl env\n  trainctl env --json | jq .gpu\n  trainctl --coordinator 127.0.0.1:7070 env");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] {
      const absl::Status status = Env(globals, *options);
      // With --json the printed object has the error.
      return status.ok() ? kClientDone : Fail(status);
    };
  });
}

}  // namespace trainyard::client
