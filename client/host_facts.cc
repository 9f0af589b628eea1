#include "client/host_facts.h"

#include <gnu/libc-version.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/bounded_program.h"
#include "client/run_folder.h"
#include "common/files.h"
#include "common/memory_cgroup.h"
#include "common/plain_text.h"
#include "common/user.h"
#include "common/user_path.h"

extern char** environ;

namespace trainyard::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kProcFileBytes = 16 << 20;  // cpuinfo of a host with many cores
constexpr uint64_t kLineFileBytes = 4096;
constexpr size_t kValueBytes = 4096;
// The first call of a GPU library takes seconds on a host with many GPUs.
constexpr absl::Duration kGpuLimit = absl::Seconds(15);
constexpr absl::Duration kPartLimit = absl::Seconds(5);
constexpr absl::Duration kPythonLimit = absl::Seconds(10);
constexpr absl::Duration kTrainerLimit = absl::Seconds(30);

// Prints the versions of Python and of the libraries that scripts use. Imports none of these libraries.
constexpr char kPythonScript[] = R"(
import sys
sys.path[:] = [path for path in sys.path if path]  # no modules of the working directory
import json, platform
from importlib import metadata
packages = {}
for name in ("torch", "accelerate", "deepspeed", "transformers", "peft", "lightning", "tensorboard"):
    try:
        packages[name] = metadata.version(name)
    except Exception:
        pass
print(json.dumps({"executable": sys.executable, "version": platform.python_version(), "packages": packages}))
)";

std::string ReadText(const std::string& path, uint64_t max_bytes) {
  absl::StatusOr<std::string> text = ReadRegularFile(path, max_bytes);
  return text.ok() ? ValidUtf8(absl::StripAsciiWhitespace(*text), max_bytes) : "";
}

// The object that a program prints, or {"error": ...}.
Json ObjectFrom(const std::vector<std::string>& command, absl::Duration limit) {
  const absl::StatusOr<std::string> text = OutputOfProgram(command, limit);
  if (!text.ok()) return {{"error", std::string(text.status().message())}};
  Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return {{"error", absl::StrCat(command[0], " printed no JSON object")}};
}

ProcessLimit LimitOf(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0) return {};
  const auto value = [](rlim_t number) { return number == RLIM_INFINITY ? kUnlimited : uint64_t{number}; };
  return {.soft = value(limit.rlim_cur), .hard = value(limit.rlim_max)};
}

void ReadCores(const HostPlaces& places, HostFacts* facts) {
  const absl::StatusOr<std::string> info = ReadRegularFile(absl::StrCat(places.proc, "/cpuinfo"), kProcFileBytes);
  if (info.ok()) ParseCpuInfo(*info, facts);
  facts->cores_online = static_cast<uint32_t>(std::max(0L, sysconf(_SC_NPROCESSORS_ONLN)));
  facts->cores_affinity = agent::CoresOfAffinity();
  facts->cores_usable = agent::UsableCores();
  const double quota = agent::CgroupCores();
  facts->cgroup_cores = std::isfinite(quota) ? quota : 0;
  while (FileExists(absl::StrCat(places.sys, "/devices/system/node/node", facts->numa_nodes))) ++facts->numa_nodes;
}

void ReadMemory(const HostPlaces& places, HostFacts* facts) {
  ParseMemoryInfo(ReadText(absl::StrCat(places.proc, "/meminfo"), kProcFileBytes), facts);
  const std::string cgroup = MemoryCgroupOf("self", places.proc);
  if (!cgroup.empty()) facts->memory_cgroup_bytes = MemoryLimitOf(cgroup);
  if (facts->memory_cgroup_bytes >= facts->memory_bytes && facts->memory_bytes > 0) facts->memory_cgroup_bytes = 0;
}

void ReadLimits(const HostPlaces& places, HostFacts* facts) {
  facts->open_files = LimitOf(RLIMIT_NOFILE);
  facts->locked_memory = LimitOf(RLIMIT_MEMLOCK);
  facts->processes = LimitOf(RLIMIT_NPROC);
  struct statvfs disk;
  if (statvfs(places.shared_memory.c_str(), &disk) == 0) {
    facts->shared_memory_bytes = uint64_t{disk.f_blocks} * disk.f_frsize;
    facts->shared_memory_free_bytes = uint64_t{disk.f_bavail} * disk.f_frsize;
  }
  facts->core_pattern = ReadText(absl::StrCat(places.proc, "/sys/kernel/core_pattern"), kLineFileBytes);
}

// The path of the file that `accelerate config` writes, from the variables that Accelerate reads.
std::string AccelerateConfigPath() {
  const auto variable = [](const char* name) {
    const char* value = getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::string base = variable("HF_HOME");
  if (base.empty()) {
    const std::string cache = variable("XDG_CACHE_HOME");
    base = JoinPath(cache.empty() ? JoinPath(HomeFolder(), ".cache") : cache, "huggingface");
  }
  return JoinPath(base, "accelerate/default_config.yaml");
}

// Runs in a process of its own, because a home folder can be on a file server that does not answer.
Json ReadFolders() {
  Json folders = Json::object();
  const auto add = [&folders](const char* name, const std::string& path) {
    folders[name] = FileExists(path) ? path : absl::StrCat(path, " (does not exist)");
  };
  add("programs", BinaryFolder());
  const absl::StatusOr<std::string> state = UserStateFolder();
  if (state.ok()) {
    add("state", JoinPath(*state, "trainyard"));
  } else {
    folders["state"] = std::string(state.status().message());
  }
  add("runs", DefaultRunRoot(WorkingDirectory()));
  add("accelerate_config", AccelerateConfigPath());
  return folders;
}

void ReadNetwork(const HostPlaces& places, const std::string& program, HostFacts* facts) {
  facts->interfaces = agent::ListInterfaces(places.sys);
  const Json address =
      ObjectFrom({program, "--coordinator", places.coordinator.empty() ? "127.0.0.1:0" : places.coordinator, "env",
                  "--part", "address"},
                 kPartLimit);
  if (!address.contains("data_address") || !address["data_address"].is_string()) {
    const bool has_reason = address.contains("error") && address["error"].is_string();
    facts->address_error = has_reason ? address["error"].get<std::string>() : "it was not determined in time";
    return;
  }
  facts->data_address = address["data_address"].get<std::string>();
  facts->data_interface = agent::InterfaceOf(facts->data_address);
}

}  // namespace

void ParseCpuInfo(absl::string_view text, HostFacts* facts) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(line, absl::MaxSplits(':', 1));
    const absl::string_view key = absl::StripAsciiWhitespace(pair.first);
    const absl::string_view value = absl::StripAsciiWhitespace(pair.second);
    if (key == "model name" && facts->cpu_model.empty()) facts->cpu_model = ValidUtf8(value, kLineFileBytes);
    if ((key != "flags" && key != "Features") || !facts->vector_units.empty()) continue;
    const std::vector<absl::string_view> flags = absl::StrSplit(value, ' ', absl::SkipEmpty());
    for (absl::string_view unit :
         {"asimd", "sve", "sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512dq", "avx512bw", "avx512vl",
          "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"}) {
      if (std::find(flags.begin(), flags.end(), unit) != flags.end()) facts->vector_units.emplace_back(unit);
    }
  }
}

void ParseMemoryInfo(absl::string_view text, HostFacts* facts) {
  constexpr uint64_t kKibibyte = 1024;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());  // "MemTotal: 123 kB"
    uint64_t number = 0;
    if (words.size() < 2 || !absl::SimpleAtoi(words[1], &number)) continue;
    if (words[0] == "MemTotal:") facts->memory_bytes = number * kKibibyte;
    if (words[0] == "MemAvailable:") facts->memory_available_bytes = number * kKibibyte;
  }
}

std::vector<std::pair<std::string, std::string>> RelevantVariables(const char* const* environment) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(*environment, absl::MaxSplits('=', 1));
    const std::string& name = pair.first;
    bool matters = name == "LD_LIBRARY_PATH" || name == "LD_PRELOAD" || name == "XDG_STATE_HOME" || name == "HF_HOME" ||
                   name == "PYTHONPATH" || name == "VIRTUAL_ENV" || name == "MASTER_ADDR" || name == "MASTER_PORT";
    for (absl::string_view prefix :
         {"TRAINYARD_", "NCCL_", "GLOO_", "OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "CUDA_", "NVIDIA_",
          "TORCH_", "PYTORCH_", "TP_SOCKET_", "ACCELERATE_", "FSDP_", "UCX_", "FI_"}) {
      matters = matters || absl::StartsWith(name, prefix);
    }
    if (!matters) continue;
    // A URL that contains a user name usually contains a password, too.
    bool is_secret = absl::StrContains(pair.second, "://") && absl::StrContains(pair.second, "@");
    for (absl::string_view part : {"TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH", "_KEY"}) {
      is_secret = is_secret || (absl::StrContains(name, part) && !absl::EndsWith(name, "_FILE"));
    }
    variables.emplace_back(ValidUtf8(name, kValueBytes),
                           is_secret ? "(set, not shown)" : ValidUtf8(pair.second, kValueBytes));
  }
  std::sort(variables.begin(), variables.end());
  return variables;
}

absl::StatusOr<Json> ReadHostPart(const std::string& part, const std::string& coordinator) {
  if (part == "address") {
    const absl::StatusOr<std::string> address = agent::FindDataAddress(coordinator);
    if (!address.ok()) return Json{{"error", std::string(address.status().message())}};
    return Json{{"data_address", *address}};
  }
  if (part == "folders") return ReadFolders();
  if (part != "gpus") {
    return absl::InvalidArgumentError(absl::StrCat("--part: expected gpus, address or folders, not ", part));
  }
  v1::Inventory inventory;
  agent::AddGpus(&inventory);
  const agent::GpuDriver driver = agent::ReadGpuDriver();
  Json devices = Json::array();
  for (const v1::Gpu& gpu : inventory.gpus()) {
    devices.push_back({{"index", gpu.index()},
                       {"name", gpu.name()},
                       {"uuid", gpu.uuid()},
                       {"memory_bytes", gpu.memory_bytes()},
                       {"compute_major", gpu.compute_major()}});
  }
  return Json{{"devices", devices},
              {"gpu_note", inventory.gpu_note()},
              {"cuda_note", inventory.cuda_note()},
              {"driver", driver.version},
              {"cuda", driver.cuda}};
}

HostFacts ReadHostFacts(const HostPlaces& places) {
  HostFacts facts;
  facts.host = ValidUtf8(agent::ThisHost(), kLineFileBytes);
  utsname name;
  if (uname(&name) == 0) facts.kernel = ValidUtf8(absl::StrCat(name.sysname, " ", name.release), kLineFileBytes);
  facts.libc = absl::StrCat("glibc ", gnu_get_libc_version());
  ReadCores(places, &facts);
  ReadMemory(places, &facts);
  ReadLimits(places, &facts);
  const std::string program = JoinPath(places.binaries, "trainctl");
  const Json folders = ObjectFrom({program, "env", "--part", "folders"}, kPartLimit);
  for (const auto& [key, value] : folders.items()) {
    if (value.is_string()) facts.folders.emplace_back(key, value.get<std::string>());
  }
  ReadNetwork(places, program, &facts);
  facts.gpu = ObjectFrom({program, "env", "--part", "gpus"}, kGpuLimit);
  facts.python = ObjectFrom({"python3", "-c", kPythonScript}, kPythonLimit);
  facts.trainer = ObjectFrom({JoinPath(places.binaries, "trainyard-trainer"), "--environment"}, kTrainerLimit);
  facts.variables = RelevantVariables(environ);
  return facts;
}

}  // namespace trainyard::client
