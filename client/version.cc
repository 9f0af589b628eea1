// trainctl version: the versions of this program, and of the configured coordinator and its worker daemons, if any.
#include "common/version.h"

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/job_calls.h"
#include "client/output.h"
#include "client/text.h"
#include "common/api_version.h"
#include "common/plural.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kVersionBytes = 60;

std::string ApiText(uint32_t oldest, uint32_t newest) {
  return oldest == newest ? absl::StrCat("API ", newest) : absl::StrCat("API ", oldest, " to ", newest);
}

// The number of hosts with each version of the daemon.
std::map<std::string, size_t> CountDaemons(const v1::ListHostsResponse& hosts) {
  std::map<std::string, size_t> versions;
  for (const v1::HostStatus& host : hosts.hosts()) {
    if (!host.version().empty()) ++versions[Printable(host.version(), kVersionBytes)];
  }
  return versions;
}

Json CoordinatorJson(const std::string& address, const v1::ServerInfo& info,
                     const std::map<std::string, size_t>& daemons) {
  Json json = {{"address", address},
               {"version", info.version()},
               {"protocol", info.protocol()},
               {"oldest_protocol", info.oldest_protocol()},
               {"api", info.api()},
               {"oldest_api", info.oldest_api()},
               {"cluster_id", info.cluster_id()},
               {"hosts", info.hosts()},
               {"slots", info.slots()},
               {"slots_free", info.slots_free()},
               {"jobs_unfinished", info.jobs_unfinished()}};
  json["daemons"] = Json::object();
  for (const auto& [version, hosts] : daemons) json["daemons"][version] = hosts;
  return json;
}

absl::Status Version(const Globals& globals, bool json) {
  Json out = {{"version", kVersion}, {"torch", kTorchVersion}, {"api", kApi}, {"oldest_api", kOldestApi}};
  if (!json) {
    Print(absl::StrCat("trainctl ", kVersion, " (LibTorch ", kTorchVersion, ", ", ApiText(kOldestApi, kApi), ")\n"));
  }
  if (globals.coordinator.empty()) {
    if (json) PrintJson(out.dump());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  ASSIGN_OR_RETURN(const v1::ServerInfo info, GetServerInfo(*connection));
  ASSIGN_OR_RETURN(const v1::ListHostsResponse hosts, ListHosts(*connection));
  const std::map<std::string, size_t> daemons = CountDaemons(hosts);
  if (json) {
    out["coordinator"] = CoordinatorJson(globals.coordinator, info, daemons);
    PrintJson(out.dump(-1, ' ', false, Json::error_handler_t::replace));
    return absl::OkStatus();
  }
  const std::string api = info.api() == 0 ? "" : absl::StrCat(" (", ApiText(info.oldest_api(), info.api()), ")");
  Print(absl::StrCat("coordinator ", Printable(info.version(), kVersionBytes), api, " at ", globals.coordinator,
                     ": cluster ", info.cluster_id(), ", ", Plural(info.hosts(), "host"), ", ", info.slots_free(),
                     " of ", Plural(info.slots(), "slot"), " free, ", Plural(info.jobs_unfinished(), "unfinished job"),
                     "\n"));
  if (!daemons.empty()) {
    Print(absl::StrCat("worker daemons: ",
                       absl::StrJoin(daemons, ", ",
                                     [](std::string* text, const std::pair<const std::string, size_t>& one) {
                                       absl::StrAppend(text, one.first, " on ", Plural(one.second, "host"));
                                     }),
                       "\n"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddVersion(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto json = std::make_shared<bool>(false);
  CLI::App* verb =
      app.add_subcommand("version", "Print the versions of trainctl, of the coordinator and of its worker daemons");
  AddJson(*verb, json.get(), "One JSON object");
  verb->footer(
      "trainctl works with a coordinator of another version if both support a version of the API, and reports\n"
      "the difference. Otherwise the call fails, and its message says what to upgrade.\n\n"
      "Examples:\n  trainctl version\n  trainctl --coordinator 127.0.0.1:7070 version");
  verb->callback([&globals, json, chosen] {
    *chosen = [&globals, json] { return ReportStatus(Version(globals, *json), *json); };
  });
}

}  // namespace trainyard::client
