// trainctl version: of this program, and of the coordinator where one is configured.
#include "common/version.h"

#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/exit_code.h"

namespace trainyard::client {
namespace {

int Version(const Globals& globals, bool json) {
  nlohmann::ordered_json out = {{"version", kVersion}, {"torch", kTorchVersion}};
  if (!json) printf("trainctl %s (LibTorch %s)\n", kVersion, kTorchVersion);
  if (globals.coordinator.empty()) {
    if (json) puts(out.dump().c_str());
    return kExitDone;
  }
  auto connection = Connect(globals);
  if (!connection.ok()) return ExitOf(connection.status(), json);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTimeout));
  v1::ServerInfo info;
  absl::StatusOr<Connection::Stub> stub = (*connection)->Begin(context);
  absl::Status status = stub.status();
  if (stub.ok()) status = (*connection)->ToStatus((*stub)->GetServerInfo(&context, {}, &info));
  if (!status.ok()) return ExitOf(status, json);
  out["coordinator"] = {{"address", globals.coordinator},  {"version", info.version()},
                        {"protocol", info.protocol()},     {"cluster_id", info.cluster_id()},
                        {"hosts", info.hosts()},           {"slots", info.slots()},
                        {"slots_free", info.slots_free()}, {"jobs_unfinished", info.jobs_unfinished()}};
  if (json) {
    puts(out.dump().c_str());
  } else {
    printf("coordinator %s at %s: cluster %s, %u hosts, %u of %u slots free, %u unfinished jobs\n",
           info.version().c_str(), globals.coordinator.c_str(), info.cluster_id().c_str(), info.hosts(),
           info.slots_free(), info.slots(), info.jobs_unfinished());
  }
  return kExitDone;
}

}  // namespace

void AddVersion(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto json = std::make_shared<bool>(false);
  CLI::App* verb = app.add_subcommand("version", "Print versions");
  verb->add_flag("--json", *json, "One JSON object");
  verb->footer("Examples:\n  trainctl version\n  trainctl --coordinator 127.0.0.1:7070 version");
  verb->callback([&globals, json, chosen] { *chosen = [&globals, json] { return Version(globals, *json); }; });
}

}  // namespace trainyard::client
