#include "client/commands.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/output.h"

namespace trainyard::client {

absl::StatusOr<std::unique_ptr<Connection>> Connect(const Globals& globals, absl::Duration wait) {
  if (globals.coordinator.empty()) {
    return absl::InvalidArgumentError(
        "no coordinator is configured: give --coordinator host:port (or unix:PATH) or set TRAINYARD_COORDINATOR. "
        "(`trainctl run` needs none: it starts a private one.)");
  }
  return Connection::Open(globals.target(), wait);
}

int ReportStatus(const absl::Status& status, bool json) {
  if (status.ok()) return kClientDone;
  if (json) PrintJson(ErrorLine(status, ExitCodeOf(status)));
  return Fail(status);
}

void AddJson(CLI::App& verb, bool* json, const std::string& help) {
  verb.add_flag("--json", *json, help);
  // Hidden: the help shows only --json.
  verb.add_option_function<std::string>(
          "-o,--output",
          [json](const std::string& form) {
            if (form != "json" && form != "text") {
              throw CLI::ValidationError(
                  "-o", absl::StrCat("unknown output format '", form, "': expected json (the same as --json) or text"));
            }
            *json = form == "json";
          })
      ->group("");
}

void ReadNumbersAsDecimal(CLI::App& app) {
  constexpr absl::string_view kWholeNumbers[] = {"INT", "UINT", "N", "STEP"};  // the names of their types in the help
  for (CLI::Option* option : app.get_options([](CLI::Option*) { return true; })) {
    // Names of checks may follow: "UINT:POSITIVE".
    const std::string type = option->get_type_name();
    const absl::string_view name = absl::string_view(type).substr(0, type.find(':'));
    if (std::find(std::begin(kWholeNumbers), std::end(kWholeNumbers), name) == std::end(kWholeNumbers)) continue;
    option->transform([](std::string number) -> std::string {
      const size_t zeros = number.find_first_not_of('0');
      if (zeros == std::string::npos) return number.empty() ? "" : "0";
      return number.substr(zeros);
    });
  }
  for (CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; })) ReadNumbersAsDecimal(*verb);
}

void AddIfVersion(CLI::App& verb, uint64_t* version) {
  verb.add_option("--if-version", *version,
                  "Do nothing unless the resource_version (in status --json, cluster --json) is still this one")
      ->check(CLI::PositiveNumber);
}

absl::Duration ReconnectOptions::connect_wait() const {
  // gRPC cannot wait forever for a connection; a month is long enough.
  constexpr absl::Duration kLongest = absl::Hours(24 * 30);
  return given ? std::max(kConnectWait, std::min(retry.give_up_after, kLongest)) : kConnectWait;
}

void AddReconnectFor(CLI::App& verb, ReconnectOptions* options) {
  verb.add_option_function<std::string>(
          "--reconnect-for",
          [options](const std::string& text) {
            absl::optional<absl::Duration> duration = ParseReconnectDuration(text);
            if (!duration.has_value()) {
              throw CLI::ValidationError(
                  "--reconnect-for",
                  absl::StrCat("'", text,
                               "' is not a duration: expected 30s, 5m, 1h30m, a number of seconds, or forever"));
            }
            options->retry.give_up_after = *duration;
            options->given = true;
          },
          "How long to retry while the coordinator does not answer: 30s, 5m, forever (the default)")
      ->type_name("DURATION");
}

void AddJobOptions(CLI::App& verb, JobOptions* options) {
  verb.add_option("file", options->file, "Job file (YAML), or file of Accelerate or DeepSpeed; - reads standard input")
      ->required();
  verb.add_option("--set", options->overrides,
                  "Set a key, overriding the file: --set train.steps=100 (YAML value; may be repeated)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  const auto set = [&](const char* flag, const char* key, const char* help) {
    verb.add_option_function<std::string>(
        flag, [options, key](const std::string& value) { options->overrides.push_back(absl::StrCat(key, "=", value)); },
        help);
  };
  set("--priority", "priority", "How urgent the job is, 0 to 100: the same as --set priority=N");
  set("--namespace", "namespace", "The namespace whose quotas the job uses: the same as --set namespace=NAME");
}

void AddAllowDataChange(CLI::App& verb, JobOptions* options) {
  verb.add_flag_callback(
      "--allow-data-change", [options] { options->overrides.push_back("checkpoint.allow_data_change=true"); },
      "With --resume: continue even if train.data.text differs from the data of the checkpoint");
}

void AddAllowFreshStart(CLI::App& verb, bool* allow) {
  verb.add_flag("--allow-fresh-start", *allow, "With --resume: train from step 1 if there is no checkpoint")
      ->needs(verb.get_option("--resume"));
}

}  // namespace trainyard::client
