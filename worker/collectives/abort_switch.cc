#include "worker/collectives/abort_switch.h"

#include <utility>

namespace trainyard {

void AbortSwitch::Attach(absl::string_view name, Communicator* communicator) {
  Attach({.name = std::string(name),
          .abort = [communicator](absl::string_view reason) { communicator->Abort(reason); },
          .progress = [communicator] { return communicator->progress(); }});
}

void AbortSwitch::Attach(Channel* channel) {
  Attach({.name = channel->name(),
          .abort = [channel](absl::string_view reason) { channel->Abort(reason); },
          .progress = [channel] { return channel->progress(); }});
}

void AbortSwitch::Attach(Attached attached) {
  absl::MutexLock lock(&mu_);
  if (aborted_) attached.abort(reason_);
  attached_.push_back(std::move(attached));
}

void AbortSwitch::Detach() {
  absl::MutexLock lock(&mu_);
  attached_.clear();
}

void AbortSwitch::Abort(absl::string_view reason) {
  absl::MutexLock lock(&mu_);
  if (!aborted_) reason_ = std::string(reason);
  aborted_ = true;
  for (const Attached& each : attached_) each.abort(reason_);
}

std::vector<NamedProgress> AbortSwitch::Progress() {
  absl::MutexLock lock(&mu_);
  std::vector<NamedProgress> all;
  for (const Attached& each : attached_) all.push_back({.name = each.name, .progress = each.progress()});
  return all;
}

}  // namespace trainyard
