#include "client/plan_machines.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/text.h"
#include "common/files.h"
#include "common/plural.h"
#include "common/strict_yaml.h"
#include "planner/machines.h"

namespace trainyard::client {
namespace {

constexpr char kLinksAssumed[] =
    "the links of the hosts are not known: assumed fast between the GPUs of a host and slow elsewhere; --machines FILE "
    "gives them";

// Why no rank of the job can be placed on a host; empty if one can.
std::string WhyNotPlanned(const v1::HostStatus& host, const v1::Resources& resources) {
  const auto names = [&host](const auto& hosts) {
    return std::find(hosts.begin(), hosts.end(), host.name()) != hosts.end();
  };
  if (resources.hosts_size() > 0 && !names(resources.hosts())) return "not in resources.hosts of the job";
  if (names(resources.exclude_hosts())) return "in resources.exclude_hosts of the job";
  if (host.slots() == 0) return "without slots";
  if (!host.attached() || !host.reachable()) return "not reachable";
  if (host.cordoned()) return "cordoned";
  if (host.draining()) return "leaving";
  if (!host.trouble().empty()) return "in trouble";
  return "";
}

// The group that a host belongs to, without its hosts.
// Possible errors: InvalidArgument: the speed of its GPU is not known.
absl::StatusOr<v1::MachineGroup> GroupOfHost(const v1::HostStatus& host, bool uses_gpus) {
  v1::MachineGroup group;
  group.set_hosts(0);
  group.set_host_memory_bytes(host.memory_bytes());
  const int gpus = uses_gpus ? host.gpu_devices_size() : 0;
  if (gpus == 0) {
    group.set_name(absl::StrCat("cpu x ", host.slots()));
    group.set_device(v1::MACHINE_DEVICE_CPU);
    group.set_ranks_per_host(host.slots());
    return group;
  }
  const v1::Gpu& gpu = host.gpu_devices(0);
  const absl::optional<v1::GpuModel> model = planner::GpuModelOf(gpu.name());
  if (!model.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the host ", host.name(), " has the GPU '", gpu.name(),
                     "', whose speed is not built in; describe the hosts with --machines FILE"));
  }
  uint64_t memory = gpu.memory_bytes();
  for (const v1::Gpu& each : host.gpu_devices()) memory = std::min<uint64_t>(memory, each.memory_bytes());
  group.set_ranks_per_host(std::min(host.slots(), static_cast<uint32_t>(gpus)));
  group.set_name(absl::StrCat(gpu.name(), " x ", group.ranks_per_host()));
  group.set_device(v1::MACHINE_DEVICE_GPU);
  group.set_model(*model);
  group.set_memory_bytes(memory);
  return group;
}

// Completes the groups, which have no file and so no positions.
absl::StatusOr<PlanMachines> CompletedMachines(PlanMachines machines) {
  Problems problems;
  for (v1::MachineGroup& group : *machines.machines.mutable_groups()) {
    planner::CompleteGroup(group.name(), {}, &group, &problems);
  }
  if (!problems.ok()) return problems.ToStatus();
  return machines;
}

}  // namespace

absl::StatusOr<PlanMachines> MachinesOfFile(const std::string& path) {
  const bool is_input = path == "-";
  const absl::StatusOr<std::string> text = is_input ? ReadStandardInput(kYamlBytesMax) : ReadFile(path, kYamlBytesMax);
  if (!text.ok()) {
    return absl::Status(
        absl::IsNotFound(text.status()) ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument,
        absl::StrCat("cannot read the machines file: ", text.status().message()));
  }
  Problems problems;
  PlanMachines out;
  out.machines = planner::ReadMachines(
      {.text = *text, .file_name = is_input ? "standard input" : path, .working_directory = ""}, &problems);
  const int count = problems.error_count();
  if (count > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(count, count == 1 ? " problem" : " problems", " in ", path, ":\n", problems.ToStatus().message()));
  }
  return out;
}

absl::StatusOr<PlanMachines> MachinesOfHosts(const v1::ListHostsResponse& hosts, const v1::JobSpec& spec) {
  const bool uses_gpus = spec.resources().device() != v1::DEVICE_CPU;
  PlanMachines out;
  std::map<std::string, v1::MachineGroup> groups;  // by what their hosts have
  std::map<std::string, uint64_t> left_out;        // by reason
  for (const v1::HostStatus& host : hosts.hosts()) {
    std::string why = WhyNotPlanned(host, spec.resources());
    if (!why.empty()) {
      ++left_out[why];
      continue;
    }
    absl::StatusOr<v1::MachineGroup> group = GroupOfHost(host, uses_gpus);
    if (!group.ok()) return group.status();
    v1::MachineGroup& known = groups.emplace(group->name(), *group).first->second;
    known.set_hosts(known.hosts() + 1);
    known.set_host_memory_bytes(std::min(known.host_memory_bytes(), group->host_memory_bytes()));
    if (known.has_memory_bytes()) known.set_memory_bytes(std::min(known.memory_bytes(), group->memory_bytes()));
  }
  for (auto& [name, group] : groups) {
    *out.machines.add_groups() = std::move(group);
  }
  for (const auto& [why, count] : left_out)
    out.notes.push_back(absl::StrCat(Plural(count, "host"), " left out: ", why));
  if (groups.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no host of the coordinator can get ranks",
                     out.notes.empty() ? "" : absl::StrCat(" (", absl::StrJoin(out.notes, "; "), ")"),
                     "; `trainctl cluster` shows why, and --machines FILE describes others"));
  }
  out.notes.push_back(kLinksAssumed);
  return CompletedMachines(std::move(out));
}

absl::StatusOr<PlanMachines> MachinesOfJob(const v1::JobSpec& spec, uint64_t memory_bytes) {
  if (spec.resources().device() == v1::DEVICE_CUDA) {
    return absl::InvalidArgumentError(
        "the job requires GPUs (resources.device: cuda), which are not known here; describe them with --machines FILE, "
        "or name a coordinator with --coordinator");
  }
  if (memory_bytes == 0) {
    return absl::InvalidArgumentError("the memory of this machine is not known; describe it with --machines FILE");
  }
  PlanMachines out;
  v1::MachineGroup& group = *out.machines.add_groups();
  group.set_name("this machine");
  group.set_hosts(1);
  group.set_device(v1::MACHINE_DEVICE_CPU);
  group.set_ranks_per_host(std::min(std::max(spec.resources().ranks(), 1u), 1024u));
  group.set_host_memory_bytes(memory_bytes);
  out.notes.push_back(absl::StrCat(
      "planned for this machine: ", Plural(group.ranks_per_host(), "rank"), " (resources.ranks) share ",
      BytesText(memory_bytes), ", each with an assumed 1e11 FLOP/s and 20e9 bytes/s; --machines FILE gives others"));
  return CompletedMachines(std::move(out));
}

}  // namespace trainyard::client
