#include "worker/collectives/abort_switch.h"

namespace trainyard {

void AbortSwitch::Attach(absl::string_view name, Communicator* communicator) {
  absl::MutexLock lock(&mu_);
  attached_.push_back({.name = std::string(name), .communicator = communicator});
  if (aborted_) communicator->Abort(reason_);
}

void AbortSwitch::Detach() {
  absl::MutexLock lock(&mu_);
  attached_.clear();
}

void AbortSwitch::Abort(absl::string_view reason) {
  absl::MutexLock lock(&mu_);
  if (!aborted_) reason_ = std::string(reason);
  aborted_ = true;
  for (const Attached& each : attached_) each.communicator->Abort(reason_);
}

std::vector<NamedProgress> AbortSwitch::Progress() {
  absl::MutexLock lock(&mu_);
  std::vector<NamedProgress> all;
  for (const Attached& each : attached_) all.push_back({.name = each.name, .progress = each.communicator->progress()});
  return all;
}

}  // namespace trainyard
