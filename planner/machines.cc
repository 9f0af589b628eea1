#include "planner/machines.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/yaml_schema.h"

namespace trainyard::planner {
namespace {

// The libraries of a rank need about this much (spec/memory_plan.h).
constexpr uint64_t kLibraryBytesOnGpu = 1'000'000'000, kLibraryBytesOnCpu = 300'000'000;
constexpr double kUsableShare = 0.95;

// NVIDIA's data sheets of the SXM boards, without sparsity: A100 80 GB (2021), H100 (2023), H200 (2024).
struct GpuFigures {
  v1::GpuModel model = v1::GPU_MODEL_UNSPECIFIED;
  const char* name = "";
  uint64_t memory_bytes = 0;
  double memory_bytes_per_s = 0;
  FlopRates flops;
};
constexpr GpuFigures kGpus[] = {
    {v1::GPU_MODEL_A100,
     "A100",
     80'000'000'000,
     2.039e12,
     {.fp32 = 19.5e12, .fp64 = 9.7e12, .bf16 = 312e12, .fp16 = 312e12}},
    {v1::GPU_MODEL_H100,
     "H100",
     80'000'000'000,
     3.35e12,
     {.fp32 = 67e12, .fp64 = 34e12, .bf16 = 989e12, .fp16 = 989e12}},
    {v1::GPU_MODEL_H200,
     "H200",
     141'000'000'000,
     4.8e12,
     {.fp32 = 67e12, .fp64 = 34e12, .bf16 = 989e12, .fp16 = 989e12}},
};

constexpr Link kFastLink = {.bytes_per_s = 450e9, .latency_s = 5e-6};
constexpr Link kSlowLink = {.bytes_per_s = 10e9, .latency_s = 2e-5};

const GpuFigures* FiguresOf(v1::GpuModel model) {
  const auto* found = std::find_if(std::begin(kGpus), std::end(kGpus),
                                   [model](const GpuFigures& figures) { return figures.model == model; });
  return found == std::end(kGpus) ? nullptr : found;
}

// The links inside a host if the group names none.
Link UsualInside(const v1::MachineGroup& group) {
  if (group.device() == v1::MACHINE_DEVICE_CPU) return kSlowLink;
  // NVLink of an A100 has two thirds of the rate of that of an H100.
  if (group.model() == v1::GPU_MODEL_A100) return {.bytes_per_s = 300e9, .latency_s = kFastLink.latency_s};
  return kFastLink;
}

void CompleteLink(const Link& usual, v1::MachineLink* link) {
  Link figures = usual;
  if (link->speed() == v1::LINK_SPEED_FAST) figures = kFastLink;
  if (link->speed() == v1::LINK_SPEED_SLOW) figures = kSlowLink;
  if (!link->has_bytes_per_s()) link->set_bytes_per_s(figures.bytes_per_s);
  if (!link->has_latency_s()) link->set_latency_s(figures.latency_s);
}

// Fills in the figures of a named GPU.
void ApplyModel(const GpuFigures& figures, v1::MachineGroup* group) {
  if (!group->has_memory_bytes()) group->set_memory_bytes(figures.memory_bytes);
  if (!group->has_memory_bytes_per_s()) group->set_memory_bytes_per_s(figures.memory_bytes_per_s);
  v1::MachineFlops& flops = *group->mutable_flops();
  if (!flops.has_fp32()) flops.set_fp32(figures.flops.fp32);
  if (!flops.has_fp64()) flops.set_fp64(figures.flops.fp64);
  if (!flops.has_bf16()) flops.set_bf16(figures.flops.bf16);
  if (!flops.has_fp16()) flops.set_fp16(figures.flops.fp16);
}

// Fills in what follows from other keys of the group.
void ApplyUsual(v1::MachineGroup* group) {
  const bool is_cpu = group->device() == v1::MACHINE_DEVICE_CPU;
  if (is_cpu && !group->has_memory_bytes() && group->has_host_memory_bytes()) {
    group->set_memory_bytes(group->host_memory_bytes() / std::max(group->ranks_per_host(), 1u));
  }
  if (is_cpu && !group->has_memory_bytes_per_s()) group->set_memory_bytes_per_s(20e9);
  v1::MachineFlops& flops = *group->mutable_flops();
  if (is_cpu && !flops.has_fp32()) flops.set_fp32(1e11);
  if (flops.has_fp32()) {
    if (!flops.has_fp64()) flops.set_fp64(flops.fp32() / 2);
    if (!flops.has_bf16()) flops.set_bf16(flops.fp32());
    if (!flops.has_fp16()) flops.set_fp16(flops.fp32());
  }
  if (!group->has_efficiency()) group->set_efficiency(is_cpu ? 0.6 : 0.45);
  if (!group->has_block_overhead_s()) group->set_block_overhead_s(5e-5);
  if (!group->has_host_bytes_per_s()) group->set_host_bytes_per_s(25e9);
  CompleteLink(UsualInside(*group), group->mutable_inside());
  CompleteLink(kSlowLink, group->mutable_between());
}

Pool PoolOf(const v1::MachineGroup& group) {
  return {.name = group.name(),
          .device = group.device() == v1::MACHINE_DEVICE_GPU ? v1::DEVICE_CUDA : v1::DEVICE_CPU,
          .hosts = std::max(group.hosts(), 1u),
          .ranks_per_host = group.ranks_per_host(),
          .memory_bytes = group.memory_bytes(),
          .host_memory_bytes = group.host_memory_bytes(),
          .memory_bytes_per_s = group.memory_bytes_per_s(),
          .host_bytes_per_s = group.host_bytes_per_s(),
          .flops = {.fp32 = group.flops().fp32(),
                    .fp64 = group.flops().fp64(),
                    .bf16 = group.flops().bf16(),
                    .fp16 = group.flops().fp16()},
          .efficiency = group.efficiency(),
          .block_overhead_s = group.block_overhead_s(),
          .inside = {.bytes_per_s = group.inside().bytes_per_s(), .latency_s = group.inside().latency_s()},
          .between = {.bytes_per_s = group.between().bytes_per_s(), .latency_s = group.between().latency_s()}};
}

Link SlowerLink(const Link& a, const Link& b) {
  return {.bytes_per_s = std::min(a.bytes_per_s, b.bytes_per_s), .latency_s = std::max(a.latency_s, b.latency_s)};
}

// Both pools together, with the smaller figure of each kind.
Pool Together(const Pool& a, const Pool& b) {
  Pool out = a;
  out.name = absl::StrCat(a.name, "+", b.name);
  out.hosts += b.hosts;
  out.memory_bytes = std::min(a.memory_bytes, b.memory_bytes);
  if (b.host_memory_bytes > 0 && (a.host_memory_bytes == 0 || b.host_memory_bytes < a.host_memory_bytes)) {
    out.host_memory_bytes = b.host_memory_bytes;
  }
  out.memory_bytes_per_s = std::min(a.memory_bytes_per_s, b.memory_bytes_per_s);
  out.host_bytes_per_s = std::min(a.host_bytes_per_s, b.host_bytes_per_s);
  // Compares the rates that ranks reach, because the efficiencies may differ.
  const auto slower = [&a, &b](double of_a, double of_b) { return std::min(of_a * a.efficiency, of_b * b.efficiency); };
  out.flops = {.fp32 = slower(a.flops.fp32, b.flops.fp32),
               .fp64 = slower(a.flops.fp64, b.flops.fp64),
               .bf16 = slower(a.flops.bf16, b.flops.bf16),
               .fp16 = slower(a.flops.fp16, b.flops.fp16)};
  out.efficiency = 1;
  out.block_overhead_s = std::max(a.block_overhead_s, b.block_overhead_s);
  out.inside = SlowerLink(a.inside, b.inside);
  out.between = SlowerLink(a.between, b.between);
  return out;
}

// Messages and plans name the groups, so no two may have the same name.
void CheckNames(const v1::Machines& machines, const Positions& positions, Problems* problems) {
  std::map<std::string, int> first;  // by name
  for (int i = 0; i < machines.groups_size(); ++i) {
    const v1::MachineGroup& group = machines.groups(i);
    if (!group.has_name()) continue;  // reported as a missing key
    const std::string path = absl::StrCat(yaml::ElementPath("groups", i), ".name");
    if (group.name().empty()) problems->AddError(positions, path, "is empty; give the group a name");
    const auto [known, is_new] = first.emplace(group.name(), i);
    if (is_new) continue;
    problems->AddError(positions, path,
                       absl::StrCat("is '", group.name(), "', as ", yaml::ElementPath("groups", known->second),
                                    ".name is; choose another name"));
  }
}

// Whether the name of a GPU contains `model` as a word: "NVIDIA A100-SXM4-80GB" does, "NVIDIA RTX A1000" does not.
bool HasWord(absl::string_view name, absl::string_view model) {
  for (size_t at = name.find(model); at != absl::string_view::npos; at = name.find(model, at + 1)) {
    const size_t end = at + model.size();
    const bool begins = at == 0 || !absl::ascii_isalnum(static_cast<unsigned char>(name[at - 1]));
    if (begins && (end == name.size() || !absl::ascii_isalnum(static_cast<unsigned char>(name[end])))) return true;
  }
  return false;
}

// Whether a problem of the key `path`, or of a map below `group` that contains it, was reported before.
bool IsRefused(const Problems& problems, absl::string_view group, absl::string_view path) {
  return std::any_of(problems.all().begin(), problems.all().end(), [&](const Problem& problem) {
    const size_t size = problem.path.size();
    if (problem.is_warning || size <= group.size() || !absl::StartsWith(path, problem.path)) return false;
    return size == path.size() || path[size] == '.';
  });
}

// Whether an amount of memory would have no digits in GiB.
bool IsSmall(uint64_t bytes) { return bytes < (uint64_t{1} << 30) / 10; }

}  // namespace

uint64_t Pool::usable_bytes() const {
  const uint64_t libraries = device == v1::DEVICE_CUDA ? kLibraryBytesOnGpu : kLibraryBytesOnCpu;
  const auto share = static_cast<uint64_t>(kUsableShare * static_cast<double>(memory_bytes));
  return share - std::min(share, libraries);
}

std::string MemoryText(uint64_t bytes) {
  const double value = static_cast<double>(bytes);
  return IsSmall(bytes) ? absl::StrFormat("%.1f MiB", value / (1 << 20))
                        : absl::StrFormat("%.1f GiB", value / (1 << 30));
}

std::string NeedText(uint64_t needed, uint64_t usable) {
  if (IsSmall(needed) || IsSmall(usable)) return absl::StrCat(MemoryText(needed), " of ", MemoryText(usable));
  return absl::StrFormat("%.1f of %s", static_cast<double>(needed) / (1 << 30), MemoryText(usable));
}

void CompleteGroup(const std::string& path, const Positions& positions, v1::MachineGroup* group, Problems* problems) {
  const auto error = [&](const char* key, absl::string_view text) {
    problems->AddError(positions, absl::StrCat(path, ".", key), text);
  };
  const auto refused = [&](const char* key) { return IsRefused(*problems, path, absl::StrCat(path, ".", key)); };
  // What a refused value would have given is not missing as well.
  const auto missing = [&](const char* key, absl::string_view text) {
    if (!refused(key) && (group->device() == v1::MACHINE_DEVICE_CPU || !refused("model"))) error(key, text);
  };
  if (group->device() == v1::MACHINE_DEVICE_TPU) {
    error("device", "is tpu, on which this program does not train; choose gpu or cpu, or remove the group");
    return;
  }
  if (!group->has_device()) return;  // reported as a missing key
  const bool is_cpu = group->device() == v1::MACHINE_DEVICE_CPU;
  if (is_cpu && group->has_model()) error("model", "names a GPU, but device is cpu; remove it, or choose device gpu");
  if (const GpuFigures* figures = is_cpu ? nullptr : FiguresOf(group->model())) ApplyModel(*figures, group);
  ApplyUsual(group);
  if (is_cpu) {
    const bool has_memory = group->memory_bytes() > 0 || refused("memory_bytes");
    if (!has_memory) missing("host_memory_bytes", "is required for cpu: the memory of a host in bytes");
    return;
  }
  if (!group->has_memory_bytes()) missing("memory_bytes", "is required without `model`: the memory of a GPU in bytes");
  if (!group->has_memory_bytes_per_s()) {
    missing("memory_bytes_per_s", "is required without `model`: the rate at which a GPU reads its memory, like 2e12");
  }
  if (!group->flops().has_fp32()) {
    missing("flops.fp32",
            "is required without `model`: the operations of a GPU per second, like 6e13 in fp32; bf16 and fp16 are "
            "assumed to be as slow unless flops.bf16 and flops.fp16 are given");
  }
}

v1::Machines ReadMachines(const YamlSource& source, Problems* problems) {
  v1::Machines machines;
  Positions positions;
  const int before = problems->error_count();
  ReadYaml(source, &machines, problems, &positions);
  // If the text is not YAML, only that is reported, and not every required key as well.
  if (problems->error_count() > before && positions.size() <= 1) return machines;
  DropInvalid(&machines, &positions, problems);
  ApplyDefaults(&machines);
  CheckNames(machines, positions, problems);
  uint64_t ranks = 0;
  for (int i = 0; i < machines.groups_size(); ++i) {
    v1::MachineGroup& group = *machines.mutable_groups(i);
    CompleteGroup(yaml::ElementPath("groups", i), positions, &group, problems);
    ranks += uint64_t{group.hosts()} * group.ranks_per_host();
  }
  if (ranks > kRanksMax) {
    problems->AddError(positions, "groups",
                       absl::StrCat("have ", ranks, " ranks together; a job can have at most ", kRanksMax));
  }
  return machines;
}

std::vector<Pool> PoolsOf(const v1::Machines& machines) {
  std::vector<Pool> pools;
  for (const v1::MachineGroup& group : machines.groups()) pools.push_back(PoolOf(group));
  if (pools.size() < 2) return pools;
  const bool equal = std::all_of(pools.begin(), pools.end(), [&pools](const Pool& pool) {
    return pool.device == pools[0].device && pool.ranks_per_host == pools[0].ranks_per_host;
  });
  if (!equal) return pools;
  Pool all = pools[0];
  for (size_t i = 1; i < pools.size(); ++i) all = Together(all, pools[i]);
  pools.push_back(std::move(all));
  return pools;
}

absl::optional<v1::GpuModel> GpuModelOf(absl::string_view reported_name) {
  // The boards for PCIe have smaller figures than the SXM boards with the same name.
  const bool is_pcie = absl::StrContains(absl::AsciiStrToUpper(reported_name), "PCIE");
  if (is_pcie || HasWord(reported_name, "NVL")) return absl::nullopt;
  for (const GpuFigures& figures : kGpus) {
    if (HasWord(reported_name, figures.name)) return figures.model;
  }
  return absl::nullopt;
}

}  // namespace trainyard::planner
