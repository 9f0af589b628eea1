#include "client/commands.h"

namespace trainyard::client {

absl::StatusOr<std::unique_ptr<Connection>> Connect(const Globals& globals) {
  if (globals.coordinator.empty()) {
    return absl::InvalidArgumentError(
        "no coordinator is named: give --coordinator host:port or set TRAINYARD_COORDINATOR. (Only `trainctl run` "
        "works "
        "without one: it starts its own.)");
  }
  return Connection::Open(globals.target(), kConnectWait);
}

void AddJobOptions(CLI::App& verb, JobOptions* options) {
  verb.add_option("file", options->file, "Job file (YAML); - reads standard input")->required();
  verb.add_option("--set", options->overrides,
                  "Set a key, wins over the file: --set train.steps=100 (value in YAML; repeat)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

}  // namespace trainyard::client
