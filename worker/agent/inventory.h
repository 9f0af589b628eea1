// What this host has: cores, memory, kernel, GPUs, and the address of the ranks' own traffic. Read once, at the
// daemon's start.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "trainyard/v1/agent.pb.h"

namespace trainyard::agent {

// `coordinator` is host:port; the data address is that of the interface that reaches it.
v1::Inventory TakeInventory(const std::string& coordinator);

// The machine's own name; "localhost" where it has none.
std::string ThisHost();

// Free for this user where `path` lies; 0 when that cannot be told.
uint64_t DiskFreeBytes(const std::string& path);
// The cores this process may use: those of its affinity mask, less what a cgroup takes away.
uint32_t UsableCores();
// The machine's memory, or a cgroup's limit where that is less.
uint64_t UsableMemoryBytes();

// The address from which this host would talk to `coordinator`; "127.0.0.1" when that is on loopback or cannot be
// resolved (yet): a host that reaches nobody runs jobs with itself alone.
std::string DataAddress(const std::string& coordinator);

// The network interface that has this address; empty: none has.
std::string InterfaceOf(const std::string& address);

// The first IPv4 address of a network interface, else its first global IPv6 one.
// Possible errors: NotFound: no such interface, or it has no address; the message lists those there are.
absl::StatusOr<std::string> InterfaceAddress(const std::string& name);

// Adds the GPUs that the driver's management library knows, or the note why there are none, or why trainers cannot
// compute on them.
void AddGpus(v1::Inventory* inventory);

// Why trainers beside `binaries` cannot compute on the GPUs here; empty: they can. Initialises the driver in this
// process.
std::string CudaNote(const std::string& binaries);

}  // namespace trainyard::agent
