#include "worker/parallel/stream_waits.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace trainyard {
namespace {

c10::Stream CurrentStream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

}  // namespace

void StreamWaits::Begin() {
  num_waits_ = num_counted_ = 0;
  measures_ = !device_.is_cpu();
}

void StreamWaits::End() { num_counted_ = num_waits_; }

void StreamWaits::BeforeWait() {
  if (!measures_) return;
  if (num_waits_ == waits_.size()) {
    // The default flag of c10::Event would disable timing.
    waits_.push_back({.before = {device_.type(), c10::EventFlag::BACKEND_DEFAULT},
                      .after = {device_.type(), c10::EventFlag::BACKEND_DEFAULT}});
  }
  waits_[num_waits_].before.record(CurrentStream(device_));
}

void StreamWaits::AfterWait() {
  if (!measures_) return;
  waits_[num_waits_++].after.record(CurrentStream(device_));
}

double StreamWaits::Seconds() {
  measures_ = false;
  double milliseconds = 0;
  for (size_t i = 0; i < num_counted_; ++i) {
    const Wait& wait = waits_[i];
    // elapsedTime throws if an event has not ended.
    if (wait.before.query() && wait.after.query()) milliseconds += wait.before.elapsedTime(wait.after);
  }
  return milliseconds / 1e3;
}

}  // namespace trainyard
