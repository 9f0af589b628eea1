#include "client/hosts_view.h"

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/text.h"

namespace trainyard::client {
namespace {

std::map<std::string, std::string> LabelsOf(const v1::HostStatus& host) {
  return {host.labels().begin(), host.labels().end()};
}

std::string LabelsText(const v1::HostStatus& host) {
  return absl::StrJoin(LabelsOf(host), ",", absl::PairFormatter("="));
}

std::vector<std::string> Row(const v1::HostStatus& host) {
  return {Printable(host.name(), 253),
          HostState(host),
          absl::StrCat(host.slots() - std::min(host.slots(), host.slots_free()), "/", host.slots()),
          host.jobs().empty() ? "-" : Printable(absl::StrJoin(host.jobs(), ","), 500),
          host.labels().empty() ? "-" : Printable(LabelsText(host), 200),
          host.version().empty() ? "-" : Printable(host.version(), 40),
          host.attached() ? absl::StrFormat("%+.3f s", host.clock_offset_s()) : "-",
          host.disk_free_bytes() > 0 ? BytesText(host.disk_free_bytes()) : "-"};
}

}  // namespace

std::string HostState(const v1::HostStatus& host) {
  std::string silent = DurationText(absl::Seconds(host.last_heard_s()));
  std::string state = !host.attached()    ? absl::StrCat("away ", silent)
                      : !host.reachable() ? absl::StrCat("unreachable ", silent)
                                          : "up";
  if (!host.trouble().empty()) state += ", in trouble";
  if (host.cordoned()) state += ", cordoned";
  if (host.draining()) state += ", leaving";
  return state;
}

std::string HostTable(const v1::ListHostsResponse& hosts, int columns) {
  if (hosts.hosts().empty()) {
    return "no host has attached yet: start trainyard-worker --coordinator HOST:PORT on each machine\n";
  }
  std::vector<std::vector<std::string>> rows = {
      {"HOST", "STATE", "SLOTS", "JOBS", "LABELS", "VERSION", "SKEW", "DISK FREE"}};
  std::string reasons;
  for (const v1::HostStatus& host : hosts.hosts()) {
    rows.push_back(Row(host));
    const std::string name = Printable(host.name(), 253);
    if (!host.trouble().empty()) {
      absl::StrAppend(&reasons, name, " cannot be given ranks: ", Printable(host.trouble(), 500), "\n");
    }
    if (!host.unknown_jobs().empty()) {
      absl::StrAppend(
          &reasons, name, " runs ", host.unknown_jobs_size() == 1 ? "a job" : "jobs",
          " that this coordinator does not know: ", Printable(absl::StrJoin(host.unknown_jobs(), ", "), 500),
          "; trainctl cancel ends ", host.unknown_jobs_size() == 1 ? "it" : "them", "\n");
    }
    if (!host.cordoned() || host.cordon_reason().empty()) continue;
    absl::StrAppend(&reasons, name, " is cordoned: ", Printable(host.cordon_reason(), 500), "\n");
  }
  return absl::StrCat(Table(rows, columns), reasons);
}

std::string HostJson(const v1::HostStatus& host) {
  nlohmann::ordered_json jobs = nlohmann::ordered_json::array(), labels = nlohmann::ordered_json::object();
  for (const std::string& job : host.jobs()) jobs.push_back(job);
  for (const auto& [key, value] : LabelsOf(host)) labels[key] = value;
  nlohmann::ordered_json unknown_jobs = nlohmann::ordered_json::array();
  for (const std::string& job : host.unknown_jobs()) unknown_jobs.push_back(job);
  nlohmann::ordered_json gpus = nlohmann::ordered_json::array();
  for (const v1::Gpu& gpu : host.gpu_devices()) {
    gpus.push_back(
        {{"index", gpu.index()}, {"name", gpu.name()}, {"uuid", gpu.uuid()}, {"memory_bytes", gpu.memory_bytes()}});
  }
  nlohmann::ordered_json json = {{"event", "host"},
                                 {"name", host.name()},
                                 {"state", HostState(host)},
                                 {"attached", host.attached()},
                                 {"reachable", host.reachable()},
                                 {"cordoned", host.cordoned()},
                                 {"cordon_reason", host.cordon_reason()},
                                 {"draining", host.draining()},
                                 {"trouble", host.trouble()},
                                 {"unknown_jobs", unknown_jobs},
                                 {"last_heard_s", host.last_heard_s()},
                                 {"peer", host.peer()},
                                 {"data_address", host.data_address()},
                                 {"slots", host.slots()},
                                 {"slots_free", host.slots_free()},
                                 {"jobs", jobs},
                                 {"cores", host.cores()},
                                 {"memory_bytes", host.memory_bytes()},
                                 {"gpus", host.gpus()},
                                 {"gpu_devices", gpus},
                                 {"gpu_note", host.gpu_note()},
                                 {"labels", labels},
                                 {"version", host.version()},
                                 {"resource_version", host.resource_version()},
                                 {"torch_version", host.torch_version()},
                                 {"kernel", host.kernel()},
                                 {"clock_offset_s", host.clock_offset_s()},
                                 {"disk_free_bytes", host.disk_free_bytes()},
                                 {"incarnation", absl::StrCat(host.incarnation())}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace trainyard::client
