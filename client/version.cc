// trainctl version: the versions of this program and of the configured coordinator, if any.
#include "common/version.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "client/text.h"
#include "common/plural.h"

namespace trainyard::client {
namespace {

int Version(const Globals& globals, bool json) {
  nlohmann::ordered_json out = {{"version", kVersion}, {"torch", kTorchVersion}};
  if (!json) Print(absl::StrCat("trainctl ", kVersion, " (LibTorch ", kTorchVersion, ")\n"));
  if (globals.coordinator.empty()) {
    if (json) PrintJson(out.dump());
    return kClientDone;
  }
  auto connection = Connect(globals);
  if (!connection.ok()) return ReportStatus(connection.status(), json);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTimeout));
  v1::ServerInfo info;
  absl::StatusOr<Connection::Stub> stub = (*connection)->Begin(context);
  absl::Status status = stub.status();
  if (stub.ok()) status = (*connection)->ToStatus((*stub)->GetServerInfo(&context, {}, &info));
  if (!status.ok()) return ReportStatus(status, json);
  out["coordinator"] = {{"address", globals.coordinator},  {"version", info.version()},
                        {"protocol", info.protocol()},     {"cluster_id", info.cluster_id()},
                        {"hosts", info.hosts()},           {"slots", info.slots()},
                        {"slots_free", info.slots_free()}, {"jobs_unfinished", info.jobs_unfinished()}};
  if (json) {
    PrintJson(out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    Print(absl::StrCat("coordinator ", info.version(), " at ", globals.coordinator, ": cluster ", info.cluster_id(),
                       ", ", Plural(info.hosts(), "host"), ", ", info.slots_free(), " of ",
                       Plural(info.slots(), "slot"), " free, ", Plural(info.jobs_unfinished(), "unfinished job"),
                       "\n"));
  }
  return kClientDone;
}

}  // namespace

void AddVersion(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto json = std::make_shared<bool>(false);
  CLI::App* verb = app.add_subcommand("version", "Print the versions of trainctl and of the coordinator");
  AddJson(*verb, json.get(), "One JSON object");
  verb->footer("Examples:\n  trainctl version\n  trainctl --coordinator 127.0.0.1:7070 version");
  verb->callback([&globals, json, chosen] { *chosen = [&globals, json] { return Version(globals, *json); }; });
}

}  // namespace trainyard::client
