// trainctl cluster, cordon, uncordon, drain, forget: lists hosts and changes their state.
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/hosts_view.h"
#include "client/job_calls.h"
#include "client/output.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct HostOptions {
  std::string name;
  std::string reason;
  bool lost = false;
  bool now = false;
  uint64_t if_version = 0;
  bool json = false;
};

absl::Status Cluster(const Globals& globals, bool json) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  ASSIGN_OR_RETURN(v1::ListHostsResponse hosts, ListHosts(*connection));
  if (!json) {
    Print(HostTable(hosts, OutputColumns()));
    return absl::OkStatus();
  }
  for (const v1::HostStatus& host : hosts.hosts()) PrintJson(HostJson(host));
  return absl::OkStatus();
}

// Describes the result of a request.
std::string HostResultText(const v1::HostStatus& host, v1::SetHostRequest::Action action) {
  std::string jobs = absl::StrJoin(host.jobs(), ", ");
  switch (action) {
    case v1::SetHostRequest::ACTION_UNCORDON:
      return "can be given ranks again";
    case v1::SetHostRequest::ACTION_DRAIN:
      return jobs.empty() ? "is cordoned and has no ranks to move"
                          : absl::StrCat("is cordoned; these jobs save and move to other hosts: ", jobs);
    case v1::SetHostRequest::ACTION_LOST:
      return jobs.empty() ? "is cordoned and treated as lost"
                          : absl::StrCat("is cordoned and treated as lost; these jobs restart elsewhere: ", jobs);
    case v1::SetHostRequest::ACTION_FORGET:
      return "is forgotten; a daemon that attaches under this name is a new host";
    default:
      return jobs.empty() ? "is cordoned: no new ranks are placed on it"
                          : absl::StrCat("is cordoned: no new ranks are placed on it; these jobs stay: ", jobs);
  }
}

absl::Status Set(const Globals& globals, const HostOptions& options, v1::SetHostRequest::Action action) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  v1::SetHostRequest request;
  request.set_name(options.name);
  request.set_action(action);
  request.set_reason(options.reason);
  request.set_now(options.now);
  request.set_expected_version(options.if_version);
  ASSIGN_OR_RETURN(v1::HostStatus host, SetHost(*connection, request));
  if (options.json) {
    PrintJson(HostJson(host));
  } else {
    Print(absl::StrCat("host ", host.name(), " ", HostResultText(host, action), "\n"));
  }
  return absl::OkStatus();
}

CLI::App* AddHostVerb(CLI::App& app, const Globals& globals, Chosen* chosen, const char* name, const char* help,
                      v1::SetHostRequest::Action action, const std::shared_ptr<HostOptions>& options) {
  options->reason = absl::StrCat("trainctl ", name);
  CLI::App* verb = app.add_subcommand(name, help);
  verb->add_option("host", options->name, "Name of the host, as trainctl cluster shows it")->required();
  verb->add_option("--reason", options->reason, "Reason, recorded in the events");
  AddIfVersion(*verb, &options->if_version);
  AddJson(*verb, &options->json, "Print the host as a JSON object");
  verb->callback([&globals, options, chosen, action] {
    *chosen = [&globals, options, action] {
      const auto requested = options->lost ? v1::SetHostRequest::ACTION_LOST : action;
      return ReportStatus(Set(globals, *options, requested), options->json);
    };
  });
  return verb;
}

}  // namespace

void AddCluster(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto json = std::make_shared<bool>(false);
  CLI::App* verb = app.add_subcommand("cluster", "List hosts: state, slots, jobs, labels, versions, clock skew");
  verb->alias("hosts")->alias("nodes");
  AddJson(*verb, json.get(), "One JSON object per line, one for each host");
  verb->footer(
      "SLOTS is used/total. SKEW is the host's clock minus the coordinator's.\n\n"
      "Examples:\n  trainctl cluster\n  trainctl cluster --json | jq -r 'select(.reachable | not) | .name'");
  verb->callback([&globals, json, chosen] {
    *chosen = [&globals, json] { return ReportStatus(Cluster(globals, *json), *json); };
  });
}

void AddCordon(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<HostOptions>();
  AddHostVerb(app, globals, chosen, "cordon", "Stop placing new ranks on a host", v1::SetHostRequest::ACTION_CORDON,
              options)
      ->footer("Ranks that already run there continue.\n\nExamples:\n  trainctl cordon w3 --reason 'fan is loud'");
}

void AddUncordon(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<HostOptions>();
  AddHostVerb(app, globals, chosen, "uncordon", "Allow new ranks on a host again", v1::SetHostRequest::ACTION_UNCORDON,
              options)
      ->footer("Examples:\n  trainctl uncordon w3");
}

void AddDrain(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<HostOptions>();
  CLI::App* verb = AddHostVerb(app, globals, chosen, "drain", "Cordon a host and move its jobs elsewhere",
                               v1::SetHostRequest::ACTION_DRAIN, options);
  verb->add_flag("--now", options->now,
                 "Kill the ranks immediately, without a save; steps since the last save are lost");
  verb->add_flag("--lost", options->lost,
                 "The host will not return: treat its ranks as ended instead of waiting for them");
  verb->footer(
      "Each job on the host stops after a step, saves, and restarts on other hosts or waits for free slots. A\n"
      "job whose save fails stays on the host and continues. With --now, the jobs do not save, and those of their\n"
      "ranks that are on unreachable hosts are treated as ended. trainctl uncordon removes the cordon.\n\n"
      "Examples:\n  trainctl drain w3 --reason 'new memory'\n  trainctl drain w3 --lost");
}

void AddForget(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<HostOptions>();
  AddHostVerb(app, globals, chosen, "forget", "Remove a permanently switched-off host from the list",
              v1::SetHostRequest::ACTION_FORGET, options)
      ->footer(
          "Fails while the host's daemon is attached or a job has ranks on the host: drain it first, then stop its "
          "daemon.\n\n"
          "Examples:\n  trainctl drain w3 && trainctl forget w3 --reason 'returned to the vendor'");
}

}  // namespace trainyard::client
