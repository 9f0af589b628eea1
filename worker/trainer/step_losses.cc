#include "worker/trainer/step_losses.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace trainyard {
namespace {

// The default flag of c10::Event would disable timing.
c10::Event NewTimedEvent(at::Device device) { return {device.type(), c10::EventFlag::BACKEND_DEFAULT}; }

}  // namespace

StepLosses::StepLosses(at::Device device) : device_(device) {
  if (!device.is_cpu()) events_.emplace(Events{.begin = NewTimedEvent(device), .end = NewTimedEvent(device)});
}

void StepLosses::Begin() {
  losses_.clear();
  copies_.clear();
  device_seconds_.reset();
  if (events_.has_value()) events_->begin.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

std::optional<double> StepLosses::Add(int64_t micro_batch, const at::Tensor& loss) {
  if (loss.is_cpu()) return losses_.emplace_back(micro_batch, loss.item<double>()).second;
  // A copy waits for the device unless the memory is pinned.
  at::Tensor copy = at::empty_like(loss, loss.options().device(at::kCPU).pinned_memory(true).requires_grad(false));
  copy.copy_(loss.detach(), /*non_blocking=*/true);
  copies_.emplace_back(micro_batch, std::move(copy));
  return std::nullopt;
}

void StepLosses::End() {
  if (events_.has_value()) events_->end.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

std::vector<std::pair<int64_t, double>> StepLosses::Await() {
  if (events_.has_value()) {
    events_->end.synchronize();
    device_seconds_ = events_->begin.elapsedTime(events_->end) / 1e3;
  }
  for (const auto& [micro_batch, copy] : std::exchange(copies_, {})) {
    losses_.emplace_back(micro_batch, copy.item<double>());
  }
  return std::exchange(losses_, {});
}

}  // namespace trainyard
