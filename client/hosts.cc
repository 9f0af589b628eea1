// trainctl cluster, cordon, uncordon, drain, forget: the hosts, and what an operator does with one.
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

// What has been asked for, in words.
std::string Told(const v1::HostStatus& host, v1::SetHostRequest::Action action) {
  std::string jobs = absl::StrJoin(host.jobs(), ", ");
  switch (action) {
    case v1::SetHostRequest::ACTION_UNCORDON:
      return "may be given ranks again";
    case v1::SetHostRequest::ACTION_DRAIN:
      return jobs.empty() ? "is cordoned and has no ranks to move"
                          : absl::StrCat("is cordoned; these jobs leave it at a step, with a save: ", jobs);
    case v1::SetHostRequest::ACTION_LOST:
      return jobs.empty() ? "is cordoned and counts as lost"
                          : absl::StrCat("is cordoned and counts as lost; formed anew elsewhere: ", jobs);
    case v1::SetHostRequest::ACTION_FORGET:
      return "is forgotten; a daemon of that name that attaches is a new host";
    default:
      return jobs.empty() ? "is cordoned: nothing new is placed there"
                          : absl::StrCat("is cordoned: nothing new is placed there; these stay: ", jobs);
  }
}

absl::Status Set(const Globals& globals, const HostOptions& options, v1::SetHostRequest::Action action) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  v1::SetHostRequest request;
  request.set_name(options.name);
  request.set_action(action);
  request.set_reason(options.reason);
  request.set_now(options.now);
  ASSIGN_OR_RETURN(v1::HostStatus host, SetHost(*connection, request));
  if (options.json) {
    PrintJson(HostJson(host));
  } else {
    Print(absl::StrCat("host ", host.name(), " ", Told(host, action), "\n"));
  }
  return absl::OkStatus();
}

CLI::App* AddHostVerb(CLI::App& app, const Globals& globals, Chosen* chosen, const char* name, const char* help,
                      v1::SetHostRequest::Action action, const std::shared_ptr<HostOptions>& options) {
  options->reason = absl::StrCat("trainctl ", name);
  CLI::App* verb = app.add_subcommand(name, help);
  verb->add_option("host", options->name, "Name of the host, as trainctl cluster shows it")->required();
  verb->add_option("--reason", options->reason, "Why, for those who ask later");
  AddJson(*verb, &options->json, "Print the host as a JSON object");
  verb->callback([&globals, options, chosen, action] {
    *chosen = [&globals, options, action] {
      const auto asked = options->lost ? v1::SetHostRequest::ACTION_LOST : action;
      return ExitOf(Set(globals, *options, asked), options->json);
    };
  });
  return verb;
}

}  // namespace

void AddCluster(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto json = std::make_shared<bool>(false);
  CLI::App* verb = app.add_subcommand("cluster", "List hosts: state, slots, jobs, labels, versions, clock skew");
  verb->alias("hosts")->alias("nodes");
  AddJson(*verb, json.get(), "One JSON object a line and host");
  verb->footer(
      "SLOTS is used/all. SKEW is the host's clock less the coordinator's.\n\n"
      "Examples:\n  trainctl cluster\n  trainctl cluster --json | jq -r 'select(.reachable | not) | .name'");
  verb->callback(
      [&globals, json, chosen] { *chosen = [&globals, json] { return ExitOf(Cluster(globals, *json), *json); }; });
}

void AddCordon(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<HostOptions>();
  AddHostVerb(app, globals, chosen, "cordon", "Place nothing new on a host", v1::SetHostRequest::ACTION_CORDON, options)
      ->footer("What runs there goes on.\n\nExamples:\n  trainctl cordon w3 --reason 'fan is loud'");
}

void AddUncordon(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<HostOptions>();
  AddHostVerb(app, globals, chosen, "uncordon", "Let a host be given ranks again", v1::SetHostRequest::ACTION_UNCORDON,
              options)
      ->footer("Examples:\n  trainctl uncordon w3");
}

void AddDrain(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<HostOptions>();
  CLI::App* verb = AddHostVerb(app, globals, chosen, "drain", "Cordon a host and move its jobs elsewhere",
                               v1::SetHostRequest::ACTION_DRAIN, options);
  verb->add_flag("--now", options->now, "Without waiting for a step and a save: steps since the last save are lost");
  verb->add_flag("--lost", options->lost, "The host is gone for good: do not wait for its ranks, take them as ended");
  verb->footer(
      "Each job there stops at a step, saves, and takes other hosts, or waits for slots. trainctl uncordon undoes the\n"
      "cordon. A job whose save fails stays, and goes on. --now also gives up hosts of these jobs that cannot be "
      "reached.\n\n"
      "Examples:\n  trainctl drain w3 --reason 'new memory'\n  trainctl drain w3 --lost");
}

void AddForget(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<HostOptions>();
  AddHostVerb(app, globals, chosen, "forget", "Take a host off the list that has been switched off for good",
              v1::SetHostRequest::ACTION_FORGET, options)
      ->footer(
          "Refused while its daemon is attached or a job has ranks there: drain it, then stop its daemon.\n\n"
          "Examples:\n  trainctl drain w3 && trainctl forget w3 --reason 'returned to the vendor'");
}

}  // namespace trainyard::client
