#include "client/env_view.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/text.h"
#include "common/plural.h"
#include "common/version.h"
#include "google/protobuf/stubs/common.h"

namespace trainyard::client {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

constexpr size_t kCellBytes = 1000;
constexpr uint64_t kSharedMemoryMin = 1 << 30;  // shared buffers of collectives and snapshots of saves
constexpr uint64_t kOpenFilesMin = 4096;
constexpr uint64_t kLockedMemoryMin = 64 << 20;

std::string TextOf(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

// Null if it is empty or 0.
Json OrNull(const std::string& text) { return text.empty() ? Json() : Json(text); }
Json OrNull(uint64_t number) { return number == 0 ? Json() : Json(number); }

std::string OrUnknown(const std::string& text) { return text.empty() ? "unknown" : text; }

std::string ProtobufVersion() { return google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION); }

size_t CountGpus(const HostFacts& facts) {
  return facts.gpu.contains("devices") && facts.gpu["devices"].is_array() ? facts.gpu["devices"].size() : 0;
}

// The value of an environment variable; null if it is not set.
const std::string* FindVariable(const HostFacts& facts, absl::string_view name) {
  for (const auto& [variable, value] : facts.variables) {
    if (variable == name) return &value;
  }
  return nullptr;
}

void WarnAboutPrograms(const HostFacts& facts, std::vector<std::string>* warnings) {
  if (const std::string error = TextOf(facts.trainer, "error"); !error.empty()) {
    warnings->push_back(absl::StrCat("no job can be trained on this host, because the trainer does not start: ", error,
                                     ". Install trainyard-trainer and its libraries next to trainctl"));
  }
  const std::string version = TextOf(facts.trainer, "version");
  if (!version.empty() && version != kVersion) {
    warnings->push_back(absl::StrCat("trainctl ", kVersion, " and trainyard-trainer ", version,
                                     " are of different versions; install both from the same release"));
  }
  if (const std::string error = TextOf(facts.gpu, "error"); !error.empty()) {
    warnings->push_back(absl::StrCat("the GPU libraries did not answer: ", error,
                                     ". Check the driver with nvidia-smi: a daemon would wait for the driver, too"));
  }
  if (const std::string note = TextOf(facts.gpu, "cuda_note"); CountGpus(facts) > 0 && !note.empty()) {
    warnings->push_back(absl::StrCat("trainers compute on the CPU although there are GPUs: ", note));
  }
  if (facts.data_address.empty()) {
    warnings->push_back(absl::StrCat(
        "it is not known at which address other hosts reach this host: ", Printable(facts.address_error, kCellBytes),
        ". A worker daemon would announce 127.0.0.1. Check the name of the coordinator and the name server, "
        "or name the coordinator by its IP address"));
  }
}

void WarnAboutLimits(const HostFacts& facts, std::vector<std::string>* warnings) {
  if (facts.shared_memory_bytes == 0) {
    warnings->push_back(
        "there is no /dev/shm: ranks of one host exchange tensors through it. Mount a tmpfs there; a container gets "
        "one from its runtime");
  } else if (facts.shared_memory_bytes < kSharedMemoryMin) {
    warnings->push_back(absl::StrCat(
        "/dev/shm has only ", BytesText(facts.shared_memory_bytes),
        ": ranks of one host exchange tensors through it, and saves keep copies there. Start a container with "
        "--shm-size=8g or --ipc=host, or remount it: mount -o remount,size=8g /dev/shm"));
  }
  if (facts.open_files.soft < kOpenFilesMin) {
    warnings->push_back(absl::StrCat("programs that this shell starts may open only ", facts.open_files.soft,
                                     " files (nofile): a coordinator of many hosts, and a job whose data is in many "
                                     "files, need more. Raise the limit: ulimit -n 65536, or LimitNOFILE in the unit "
                                     "of systemd"));
  }
  if (CountGpus(facts) > 0 && facts.locked_memory.soft < kLockedMemoryMin) {
    warnings->push_back(absl::StrCat("programs that this shell starts may lock only ",
                                     BytesText(facts.locked_memory.soft),
                                     " of memory (memlock); RDMA networks need more: ulimit -l unlimited, "
                                     "or --ulimit memlock=-1 for a container"));
  }
  if (facts.cgroup_cores > 0 && facts.cgroup_cores < facts.cores_affinity) {
    warnings->push_back(absl::StrFormat(
        "a cgroup limits this process to %.3g of its %d cores: more threads than that are throttled. Trainyard counts "
        "%d; scripts that count cores themselves need OMP_NUM_THREADS",
        facts.cgroup_cores, facts.cores_affinity, facts.cores_usable));
  }
}

void WarnAboutVariables(const HostFacts& facts, std::vector<std::string>* warnings) {
  for (const char* name : {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}) {
    const std::string* value = FindVariable(facts, name);
    if (value == nullptr || value->empty()) continue;
    // NCCL's value is a list of prefixes, each with an optional port; a leading ^ excludes them, and a leading = makes
    // them whole names. The values of Gloo and TensorPipe are lists of whole names.
    const bool is_of_nccl = absl::StartsWith(name, "NCCL");
    if (is_of_nccl && (*value)[0] == '^') continue;
    const bool has_equals_sign = is_of_nccl && (*value)[0] == '=';
    const bool is_exact = has_equals_sign || !is_of_nccl;
    for (absl::string_view part : absl::StrSplit(absl::string_view(*value).substr(has_equals_sign), ',')) {
      const absl::string_view name_or_prefix = is_of_nccl ? part.substr(0, part.find(':')) : part;
      const bool is_found = std::any_of(facts.interfaces.begin(), facts.interfaces.end(), [&](const auto& interface) {
        return is_exact ? interface.name == name_or_prefix : absl::StartsWith(interface.name, name_or_prefix);
      });
      if (is_found) continue;
      warnings->push_back(absl::StrCat(name, " names the interface '", part,
                                       "', which this host does not have: scripts fail to connect"));
    }
  }
  if (FindVariable(facts, "TRAINYARD_CPU") != nullptr) {
    warnings->push_back("TRAINYARD_CPU is set, a variable for tests: ranks compute without the widest vector units");
  }
  if (FindVariable(facts, "TRAINYARD_FAULT_POINTS") != nullptr) {
    warnings->push_back("TRAINYARD_FAULT_POINTS is set, a variable for tests: trainers fail on purpose");
  }
}

std::string LimitText(uint64_t value, bool is_bytes) {
  if (value == kUnlimited) return "unlimited";
  return is_bytes ? BytesText(value) : absl::StrCat(value);
}

Json LimitJson(const ProcessLimit& limit) {
  const auto value = [](uint64_t number) { return number == kUnlimited ? Json() : Json(number); };
  return {{"soft", value(limit.soft)}, {"hard", value(limit.hard)}};
}

Json InterfacesJson(const HostFacts& facts) {
  Json list = Json::array();
  for (const agent::NetworkInterface& interface : facts.interfaces) {
    list.push_back({{"name", interface.name},
                    {"addresses", interface.addresses},
                    {"up", interface.is_up},
                    {"loopback", interface.is_loopback},
                    {"speed_mbits", OrNull(uint64_t{interface.speed_mbits})}});
  }
  return list;
}

Json PairsJson(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json object = Json::object();
  for (const auto& [name, value] : pairs) object[name] = value;
  return object;
}

// Replaces empty texts in the answer of a part by null.
Json WithNulls(Json part) {
  for (auto& [key, value] : part.items()) {
    if (value.is_string() && value.get<std::string>().empty()) value = nullptr;
  }
  return part;
}

Rows VersionRows(const HostFacts& facts) {
  Rows rows = {{"  trainctl", kVersion}};
  const std::string error = TextOf(facts.trainer, "error");
  rows.push_back({"  trainer", error.empty() ? absl::StrCat(TextOf(facts.trainer, "version"), ", LibTorch ",
                                                            OrUnknown(TextOf(facts.trainer, "torch")))
                                             : absl::StrCat("does not start: ", Printable(error, kCellBytes))});
  for (const auto& [name, key] : {std::pair<const char*, const char*>{"  MKL", "mkl"}, {"  oneDNN", "onednn"}}) {
    if (const std::string text = TextOf(facts.trainer, key); !text.empty()) {
      rows.push_back({name, Printable(text, kCellBytes)});
    }
  }
  rows.push_back({"  gRPC", grpc::Version()});
  rows.push_back({"  protobuf", ProtobufVersion()});
  rows.push_back({"  kernel", OrUnknown(facts.kernel)});
  rows.push_back({"  libc", facts.libc});
  std::string python = "none in PATH";
  if (!TextOf(facts.python, "version").empty()) {
    python = absl::StrCat(TextOf(facts.python, "version"), " (", TextOf(facts.python, "executable"), ")");
    if (facts.python.contains("packages") && facts.python["packages"].is_object()) {
      for (const auto& [name, version] : facts.python["packages"].items()) {
        absl::StrAppend(&python, ", ", name, " ", version.is_string() ? version.get<std::string>() : "");
      }
    }
  }
  rows.push_back({"  Python", Printable(python, kCellBytes)});
  return rows;
}

Rows ProcessorRows(const HostFacts& facts) {
  std::string cores =
      absl::StrCat(facts.cores_usable, " usable of ", facts.cores_online, " online; affinity ", facts.cores_affinity);
  absl::StrAppend(&cores, facts.cgroup_cores > 0 ? absl::StrFormat(", cgroup quota %.3g", facts.cgroup_cores)
                                                 : ", no cgroup quota");
  Rows rows = {{"  model", Printable(OrUnknown(facts.cpu_model), kCellBytes)},
               {"  cores", cores},
               {"  NUMA nodes", facts.numa_nodes == 0 ? "unknown" : absl::StrCat(facts.numa_nodes)},
               {"  vector units", facts.vector_units.empty() ? "none" : absl::StrJoin(facts.vector_units, " ")}};
  if (!facts.trainer.contains("error")) {
    rows.push_back({"  kernels", absl::StrCat("Trainyard's: ", TextOf(facts.trainer, "vector_code"),
                                              ", LibTorch's: ", OrUnknown(TextOf(facts.trainer, "cpu_capability")))});
    rows.push_back(
        {"  product_kernels", absl::StrCat("auto selects ", OrUnknown(TextOf(facts.trainer, "product_kernels")), ": ",
                                           Printable(TextOf(facts.trainer, "kernels"), kCellBytes))});
    const bool has_bf16 = facts.trainer.value("bf16_products", Json()) == true;
    rows.push_back({"  precision", absl::StrCat("fp32 unless train.precision is given; this CPU ",
                                                has_bf16 ? "multiplies" : "has no instruction to multiply", " bf16")});
  }
  std::string memory = facts.memory_bytes == 0 ? "unknown" : BytesText(facts.memory_bytes);
  if (facts.memory_available_bytes > 0)
    absl::StrAppend(&memory, ", ", BytesText(facts.memory_available_bytes), " available");
  absl::StrAppend(&memory, facts.memory_cgroup_bytes > 0
                               ? absl::StrCat(", cgroup limit ", BytesText(facts.memory_cgroup_bytes))
                               : ", no cgroup limit");
  rows.push_back({"  memory", memory});
  return rows;
}

Rows GpuRows(const HostFacts& facts) {
  Rows rows;
  if (CountGpus(facts) == 0) {
    const std::string error = TextOf(facts.gpu, "error"), note = TextOf(facts.gpu, "gpu_note");
    rows.push_back({"  GPUs", absl::StrCat("0: ", Printable(OrUnknown(error.empty() ? note : error), kCellBytes))});
  } else {
    rows.push_back({"  GPUs", absl::StrCat(CountGpus(facts))});
    for (const Json& device : facts.gpu["devices"]) {
      const int major = device.value("compute_major", 0);
      rows.push_back({absl::StrCat("  GPU ", device.value("index", 0)),
                      absl::StrCat(Printable(device.value("name", ""), kCellBytes), ", ",
                                   BytesText(device.value("memory_bytes", uint64_t{0})), ", compute capability ",
                                   major == 0 ? "not known" : absl::StrCat(major, ".x"))});
    }
  }
  rows.push_back({"  driver", OrUnknown(TextOf(facts.gpu, "driver")) +
                                  (TextOf(facts.gpu, "cuda").empty() ? "" : ", CUDA " + TextOf(facts.gpu, "cuda"))});
  const std::string nccl = TextOf(facts.trainer, "nccl"), note = TextOf(facts.trainer, "nccl_note");
  rows.push_back(
      {"  NCCL", nccl.empty() ? absl::StrCat("none", note.empty() ? "" : ": ", Printable(note, kCellBytes)) : nccl});
  rows.push_back({"  used by jobs", CountGpus(facts) > 0 && TextOf(facts.gpu, "cuda_note").empty()
                                        ? "resources.device auto selects cuda, with NCCL between ranks"
                                        : "resources.device auto selects cpu, with shared memory and gloo between "
                                          "ranks"});
  return rows;
}

Rows NetworkRows(const HostFacts& facts) {
  Rows rows;
  for (const agent::NetworkInterface& interface : facts.interfaces) {
    std::string text = interface.addresses.empty() ? "no address" : absl::StrJoin(interface.addresses, " ");
    if (!interface.is_up) text += ", down";
    if (interface.speed_mbits > 0) absl::StrAppend(&text, ", ", interface.speed_mbits, " Mbit/s");
    rows.push_back({absl::StrCat("  ", Printable(interface.name, kCellBytes)), text});
  }
  std::string chosen = "could not be determined in time";
  if (!facts.data_address.empty()) {
    chosen = absl::StrCat(facts.data_address, facts.data_interface.empty() ? "" : " on ", facts.data_interface);
  }
  rows.push_back({"  a daemon uses", chosen});
  return rows;
}

Rows LimitRows(const HostFacts& facts) {
  const auto both = [](const ProcessLimit& limit, bool is_bytes) {
    return absl::StrCat(LimitText(limit.soft, is_bytes), " (hard limit ", LimitText(limit.hard, is_bytes), ")");
  };
  return {
      {"  open files", both(facts.open_files, false)},
      {"  locked memory", both(facts.locked_memory, true)},
      {"  processes", both(facts.processes, false)},
      {"  /dev/shm", facts.shared_memory_bytes == 0 ? "none"
                                                    : absl::StrCat(BytesText(facts.shared_memory_bytes), ", ",
                                                                   BytesText(facts.shared_memory_free_bytes), " free")},
      {"  core pattern", Printable(OrUnknown(facts.core_pattern), kCellBytes)}};
}

Rows PairRows(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Rows rows;
  for (const auto& [name, value] : pairs) {
    rows.push_back({absl::StrCat("  ", Printable(name, kCellBytes)), Printable(value, kCellBytes)});
  }
  return rows;
}

}  // namespace

std::vector<std::string> WarningsOf(const HostFacts& facts) {
  std::vector<std::string> warnings;
  WarnAboutPrograms(facts, &warnings);
  WarnAboutLimits(facts, &warnings);
  WarnAboutVariables(facts, &warnings);
  return warnings;
}

Json FactsJson(const HostFacts& facts) {
  return {{"versions",
           {{"trainctl", kVersion},
            {"torch", OrNull(TextOf(facts.trainer, "torch"))},
            {"grpc", grpc::Version()},
            {"protobuf", ProtobufVersion()},
            {"kernel", OrNull(facts.kernel)},
            {"libc", facts.libc}}},
          {"host", facts.host},
          {"cpu",
           {{"model", OrNull(facts.cpu_model)},
            {"cores_online", OrNull(uint64_t{facts.cores_online})},
            {"cores_affinity", OrNull(uint64_t{facts.cores_affinity})},
            {"cgroup_cores", facts.cgroup_cores > 0 ? Json(facts.cgroup_cores) : Json()},
            {"cores_usable", OrNull(uint64_t{facts.cores_usable})},
            {"numa_nodes", OrNull(uint64_t{facts.numa_nodes})},
            {"vector_units", facts.vector_units}}},
          {"memory",
           {{"bytes", OrNull(facts.memory_bytes)},
            {"available_bytes", OrNull(facts.memory_available_bytes)},
            {"cgroup_bytes", OrNull(facts.memory_cgroup_bytes)}}},
          {"trainer", WithNulls(facts.trainer)},
          {"gpu", WithNulls(facts.gpu)},
          {"python", facts.python},
          {"network",
           {{"interfaces", InterfacesJson(facts)},
            {"data_address", OrNull(facts.data_address)},
            {"data_interface", OrNull(facts.data_interface)}}},
          {"limits",
           {{"open_files", LimitJson(facts.open_files)},
            {"locked_memory_bytes", LimitJson(facts.locked_memory)},
            {"processes", LimitJson(facts.processes)},
            {"shared_memory_bytes", OrNull(facts.shared_memory_bytes)},
            {"shared_memory_free_bytes", OrNull(facts.shared_memory_free_bytes)},
            {"core_pattern", OrNull(facts.core_pattern)}}},
          {"folders", PairsJson(facts.folders)},
          {"variables", PairsJson(facts.variables)},
          {"warnings", WarningsOf(facts)}};
}

std::string FactsText(const HostFacts& facts, int columns) {
  std::string text;
  const auto add = [&](absl::string_view title, const Rows& rows) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", title, "\n", rows.empty() ? "  none\n" : Table(rows, columns));
  };
  add("versions", VersionRows(facts));
  add("processor and memory", ProcessorRows(facts));
  add("GPU", GpuRows(facts));
  add("network", NetworkRows(facts));
  add("limits", LimitRows(facts));
  add("folders and files", PairRows(facts.folders));
  add("environment variables", PairRows(facts.variables));
  const std::vector<std::string> warnings = WarningsOf(facts);
  absl::StrAppend(&text, "\n", warnings.empty() ? "no warnings" : Plural(warnings.size(), "warning"), "\n");
  for (const std::string& warning : warnings) {
    for (const std::string& line :
         WrapText(Printable(warning, kCellBytes), columns == 0 ? 110 : std::max(columns, 20) - 2)) {
      absl::StrAppend(&text, "  ", line, "\n");
    }
  }
  return text;
}

std::string InventoryTable(const v1::ListHostsResponse& hosts, int columns) {
  Rows rows = {{"HOST", "STATE", "VERSION", "LIBTORCH", "CORES", "MEMORY", "GPUS", "ADDRESS", "KERNEL"}};
  for (const v1::HostStatus& host : hosts.hosts()) {
    const std::string gpus = host.gpus() > 0 && !host.gpu_devices().empty()
                                 ? absl::StrCat(host.gpus(), " ", Printable(host.gpu_devices(0).name(), 100))
                                 : absl::StrCat(host.gpus());
    rows.push_back({Printable(host.name(), 253), host.attached() ? "up" : "away", Printable(host.version(), 40),
                    Printable(host.torch_version(), 40), absl::StrCat(host.cores()), BytesText(host.memory_bytes()),
                    gpus, Printable(host.data_address(), 100), Printable(host.kernel(), 100)});
  }
  return Table(rows, columns);
}

}  // namespace trainyard::client
