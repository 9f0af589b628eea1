// The machines that a plan is for: reads machines files (proto/trainyard/v1/machines.proto) and turns their groups into
// pools, sets of equal ranks that a layout can use. Pure.
//
//   v1::Machines machines = ReadMachines({.text = text, .file_name = "machines.yaml"}, &problems);
//   if (problems.ok()) pools = PoolsOf(machines);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/problems.h"
#include "common/strict_yaml.h"
#include "trainyard/v1/job.pb.h"
#include "trainyard/v1/machines.pb.h"

namespace trainyard::planner {

inline constexpr uint64_t kRanksMax = 65536;  // of a job, as resources.ranks

struct Link {
  double bytes_per_s = 0;  // in each direction
  double latency_s = 0;
};

// From this rate on, a link counts as fast (NVLink, NVSwitch, or a network of the same class).
inline constexpr double kFastBytesPerSecond = 100e9;
inline bool IsFast(const Link& link) { return link.bytes_per_s >= kFastBytesPerSecond; }

// The largest rates of a rank, in floating-point operations per second.
struct FlopRates {
  double fp32 = 0, fp64 = 0, bf16 = 0, fp16 = 0;
};

struct Pool {
  std::string name;
  v1::Device device = v1::DEVICE_CPU;
  uint64_t hosts = 1;
  uint64_t ranks_per_host = 1;
  uint64_t memory_bytes = 0;       // of the device of each rank
  uint64_t host_memory_bytes = 0;  // of each host; 0: not limited
  double memory_bytes_per_s = 0;
  double host_bytes_per_s = 0;  // between a device and host memory
  FlopRates flops;
  double efficiency = 1;
  double block_overhead_s = 0;
  Link inside;   // of each rank, to the other ranks of its host
  Link between;  // of each host, which its ranks share

  uint64_t ranks() const { return hosts * ranks_per_host; }
  // The memory of a rank that a plan may fill: without what the libraries need, and 5 % for fragmentation.
  uint64_t usable_bytes() const;
};

// "12.3 GiB"; amounts below a tenth of a GiB in MiB.
std::string MemoryText(uint64_t bytes);
// "121.1 of 69.8 GiB".
std::string NeedText(uint64_t needed, uint64_t usable);

// Reads a machines file, sets its defaults and checks it. The result is invalid if `problems` has errors.
v1::Machines ReadMachines(const YamlSource& source, Problems* problems);

// Sets what a group leaves open (the figures of its GPU, the defaults) and reports what is missing, under `path`. For
// groups from other sources than a file.
void CompleteGroup(const std::string& path, const Positions& positions, v1::MachineGroup* group, Problems* problems);

// One pool for each group, and one of all groups if there are several of the same device and number of ranks. Ranks of
// one step wait for the slowest of them, so that pool has the smallest figure of all groups. REQUIRES: `machines` was
// completed without an error.
std::vector<Pool> PoolsOf(const v1::Machines& machines);

// Finds the GPU whose figures are built in from the name that its driver reports: "NVIDIA H100 80GB HBM3". None for
// boards with PCIe.
absl::optional<v1::GpuModel> GpuModelOf(absl::string_view reported_name);

}  // namespace trainyard::planner
