// What `trainctl env` prints: the versions, hardware, limits and settings of this host that matter to a job. Reads
// files, the environment and the network's configuration, and asks other programs, each with a time limit, because GPU
// libraries, name servers and Python installations can hang. A fact that cannot be read is empty or 0.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "worker/agent/inventory.h"

namespace trainyard::client {

// Where facts are read; tests replace the folders.
struct HostPlaces {
  std::string proc = "/proc";
  std::string sys = "/sys";
  std::string shared_memory = "/dev/shm";
  std::string binaries;     // the folder of trainyard-trainer and of trainctl
  std::string coordinator;  // host:port, unix:PATH, or empty: none configured
};

// A limit of this process; kUnlimited: none.
inline constexpr uint64_t kUnlimited = UINT64_MAX;
struct ProcessLimit {
  uint64_t soft = kUnlimited, hard = kUnlimited;
};

struct HostFacts {
  std::string host, kernel, libc;

  std::string cpu_model;
  uint32_t cores_online = 0, cores_affinity = 0, cores_usable = 0;
  double cgroup_cores = 0;  // 0: no quota
  uint32_t numa_nodes = 0;
  std::vector<std::string> vector_units;  // as in /proc/cpuinfo, widest last

  uint64_t memory_bytes = 0, memory_available_bytes = 0;
  uint64_t memory_cgroup_bytes = 0;  // the limit; 0: none

  // The answers of the programs: their JSON, or {"error": "..."}.
  nlohmann::ordered_json trainer;  // of trainyard-trainer --environment
  nlohmann::ordered_json gpu;      // devices, gpu_note, cuda_note, driver, cuda
  nlohmann::ordered_json python;   // executable, version, packages

  std::vector<agent::NetworkInterface> interfaces;
  std::string data_address;   // the address that a worker daemon would announce; empty: it could not be determined
  std::string address_error;  // why it could not be determined
  std::string data_interface;

  ProcessLimit open_files, locked_memory, processes;
  uint64_t shared_memory_bytes = 0, shared_memory_free_bytes = 0;
  std::string core_pattern;

  // Names and paths: state folder, run folder root and so on.
  std::vector<std::pair<std::string, std::string>> folders;
  // Environment variables of ours and of the libraries, by name. Secrets are replaced.
  std::vector<std::pair<std::string, std::string>> variables;
};

// Blocks for at most about a minute, if every program hangs; usually for a second.
HostFacts ReadHostFacts(const HostPlaces& places);

// Reads one of the parts that ReadHostFacts leaves to a separate process, `trainctl env --part NAME`: "gpus", "address"
// or "folders". Returns one JSON object. Possible errors: InvalidArgument: another name.
absl::StatusOr<nlohmann::ordered_json> ReadHostPart(const std::string& part, const std::string& coordinator);

// Sets the facts that /proc/cpuinfo has. Pure.
void ParseCpuInfo(absl::string_view text, HostFacts* facts);

// Sets the facts that /proc/meminfo has. Pure.
void ParseMemoryInfo(absl::string_view text, HostFacts* facts);

// The variables of `environment` (NAME=value) that matter, sorted, with secrets replaced. Pure.
std::vector<std::pair<std::string, std::string>> RelevantVariables(const char* const* environment);

}  // namespace trainyard::client
