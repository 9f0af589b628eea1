// Resources of this host: cores, memory, kernel, GPUs, and the address for traffic between ranks. Read once, when the
// daemon starts.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "trainyard/v1/agent.pb.h"

namespace trainyard::agent {

// `coordinator` is host:port; the data address is the address of the interface that reaches it.
v1::Inventory ReadInventory(const std::string& coordinator);

// The machine's host name; "localhost" if it has none.
std::string ThisHost();

// Bytes that this user can write on the file system of `path`; 0 if unknown.
uint64_t DiskFreeBytes(const std::string& path);
// The number of cores that this process may use: those of its affinity mask, limited by its cgroup.
uint32_t UsableCores();
// The machine's memory, or the cgroup's limit if that is less.
uint64_t UsableMemoryBytes();

// The address from which this host would connect to `coordinator`. "127.0.0.1" if the coordinator is on loopback or
// cannot be resolved (yet): a host that reaches no other host can run jobs on its own only.
std::string DataAddress(const std::string& coordinator);

// The network interface that has this address; empty if none has.
std::string InterfaceOf(const std::string& address);

// The first IPv4 address of a network interface, else its first global IPv6 address.
// Possible errors: NotFound: no such interface, or it has no address; the message lists the interfaces.
absl::StatusOr<std::string> InterfaceAddress(const std::string& name);

// Adds the GPUs that the driver's management library reports, or a note why there are none or why trainers cannot use
// them.
void AddGpus(v1::Inventory* inventory);

// Why trainers in the folder `binaries` cannot compute on the GPUs here; empty: they can. Initializes the driver in
// this process.
std::string CudaNote(const std::string& binaries);

}  // namespace trainyard::agent
