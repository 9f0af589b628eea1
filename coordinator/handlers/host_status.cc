#include "coordinator/handlers/host_status.h"

#include <algorithm>
#include <set>
#include <string>

#include "coordinator/core/turn.h"
#include "coordinator/handlers/slots.h"

namespace trainyard {
namespace {

void SetInventory(const Host& host, v1::HostStatus& status) {
  const v1::Inventory& inventory = host.inventory;
  status.set_cores(inventory.cores());
  status.set_memory_bytes(inventory.memory_bytes());
  status.set_gpus(static_cast<uint32_t>(inventory.gpus_size()));
  *status.mutable_gpu_devices() = inventory.gpus();
  status.set_gpu_note(inventory.gpu_note());
  status.set_version(inventory.version());
  status.set_torch_version(inventory.torch_version());
  status.set_kernel(inventory.kernel());
  status.set_data_address(inventory.data_address());
  *status.mutable_labels() = inventory.labels();
}

}  // namespace

v1::HostStatus MakeHostStatus(const Turn& turn, const Host& host) {
  v1::HostStatus status;
  status.set_name(host.name.value());
  if (host.attached()) status.set_peer(host.peer);
  status.set_attached(host.attached());
  status.set_reachable(host.reachable);
  status.set_last_heard_s(absl::ToDoubleSeconds(std::max(turn.now - host.last_contact, absl::ZeroDuration())));
  status.set_cordoned(host.record.cordoned());
  status.set_cordon_reason(host.record.cordon_reason());
  status.set_draining(host.draining);
  status.set_slots(host.slots);
  for (const JobId& job : host.jobs) {
    if (turn.state.jobs.at(job).HasRanksLeftOn(host.name)) status.add_jobs(job.value());
  }
  status.set_clock_offset_s(absl::ToDoubleSeconds(host.clock_offset));
  status.set_disk_free_bytes(host.disk_free_bytes);
  status.set_incarnation(host.record.incarnation());
  SetInventory(host, status);
  status.set_trouble(host.trouble);
  status.set_resource_version(host.version());
  std::set<std::string> unknown;
  for (const v1::TrainerKey& key : host.unknown) unknown.insert(key.job_id());
  for (const std::string& id : unknown) status.add_unknown_jobs(id);
  const uint64_t used = UsedSlotsOf(turn.state, host).count;
  status.set_slots_free(host.slots - static_cast<uint32_t>(std::min<uint64_t>(used, host.slots)));
  return status;
}

}  // namespace trainyard
