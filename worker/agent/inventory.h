// Resources of this host: cores, memory, kernel, GPUs, and the address for traffic between ranks. The daemon reads them
// once, when it starts, and the address again whenever its stream has ended; `trainctl env` prints them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainyard/v1/agent.pb.h"

namespace trainyard::agent {

// `coordinator` is host:port or unix:PATH; the data address is the address of the interface that reaches it.
v1::Inventory ReadInventory(const std::string& coordinator);

// The machine's host name; "localhost" if it has none.
std::string ThisHost();

// Bytes that this user can write on the file system of `path`; 0 if unknown.
uint64_t DiskFreeBytes(const std::string& path);
// The number of cores that this process may use: those of its affinity mask, limited by its cgroup.
uint32_t UsableCores();
// How many cores the affinity mask of this process contains, and which ones, by their numbers.
uint32_t CoresOfAffinity();
std::vector<uint32_t> CpusOfAffinity();
// CPU time that cgroups allow, in cores; infinite if they set no limit. `root` is the folder with /proc and /sys, which
// tests replace.
double CgroupCores(const std::string& root = "");
// The machine's memory, or the cgroup's limit if that is less.
uint64_t UsableMemoryBytes();

// The address from which this host would connect to `coordinator`: "127.0.0.1" if the coordinator is on loopback. If
// this host resolves the coordinator's name to loopback (other than localhost), returns the address of the default
// route instead, if there is one. Waits for the name server. Possible errors: NotFound: the coordinator's name is
// not resolved, or no interface leads to the coordinator.
absl::StatusOr<std::string> FindDataAddress(const std::string& coordinator);
// As FindDataAddress, but returns "127.0.0.1" after an error: a host that reaches no other host can run jobs that need
// no other host.
std::string DataAddress(const std::string& coordinator);

// The network interface that has this address; empty if none has.
std::string InterfaceOf(const std::string& address);

// The first IPv4 address of a network interface, else its first global IPv6 address.
// Possible errors: NotFound: no such interface, or it has no address; the message lists the interfaces.
absl::StatusOr<std::string> InterfaceAddress(const std::string& name);

struct NetworkInterface {
  std::string name;
  std::vector<std::string> addresses;  // IPv4 and IPv6
  bool is_up = false;                  // enabled, with a link
  bool is_loopback = false;
  uint32_t speed_mbits = 0;  // megabits per second; 0: not known
};
// All interfaces by name. `sys` is the mount point of sysfs, which tests replace.
std::vector<NetworkInterface> ListInterfaces(const std::string& sys = "/sys");

// Adds the GPUs that the driver's management library reports and CUDA_VISIBLE_DEVICES, which trainers inherit, does not
// hide. Otherwise adds a note why there are none or why trainers cannot use them.
void AddGpus(v1::Inventory* inventory);

// Returns the GPUs that a program with this value of CUDA_VISIBLE_DEVICES sees, in its order: those that the entries
// name by number or by the beginning of the UUID, up to the first entry that names none, several or one again. The
// numbers are those of the management library; CUDA's are the same if the GPUs are alike or CUDA_DEVICE_ORDER is
// PCI_BUS_ID. If the value names a MIG device, a part of a GPU, returns all GPUs, because the library lists whole ones.
google::protobuf::RepeatedPtrField<v1::Gpu> VisibleGpus(const google::protobuf::RepeatedPtrField<v1::Gpu>& gpus,
                                                        absl::string_view visible);

// Why trainers in the folder `binaries` cannot compute on the GPUs here; empty: they can. Initializes the driver in
// this process.
std::string CudaNote(const std::string& binaries);

// The versions of the GPU driver ("580.65.06") and of the CUDA that it supports ("13.0"); empty where unknown.
struct GpuDriver {
  std::string version;
  std::string cuda;
};
GpuDriver ReadGpuDriver();

}  // namespace trainyard::agent
