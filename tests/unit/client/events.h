// Events as a coordinator sends them, for tests.
#pragma once

#include <cstdint>

#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

inline v1::Event StepEvent(uint64_t sequence, uint64_t step, double loss, double step_s = 0.5, int64_t time_ms = 0) {
  v1::Event event;
  event.set_sequence(sequence);
  event.set_generation(1);
  event.set_time_unix_ms(time_ms);
  event.mutable_step()->set_step(step);
  event.mutable_step()->set_loss(loss);
  event.mutable_step()->set_tokens(1000);
  event.mutable_step()->set_step_s(step_s);
  return event;
}

inline v1::Event StateEvent(uint64_t sequence, v1::JobState state, const std::string& reason = "") {
  v1::Event event;
  event.set_sequence(sequence);
  event.mutable_state()->set_state(state);
  event.mutable_state()->set_reason(reason);
  return event;
}

inline v1::Event EvalEvent(uint64_t sequence, uint64_t step, double loss) {
  v1::Event event;
  event.set_sequence(sequence);
  event.mutable_eval()->set_step(step);
  event.mutable_eval()->set_loss(loss);
  event.mutable_eval()->set_seconds(0.25);
  return event;
}

inline v1::Event CheckpointEvent(uint64_t sequence, uint64_t step) {
  v1::Event event;
  event.set_sequence(sequence);
  event.mutable_checkpoint()->set_step(step);
  event.mutable_checkpoint()->set_path("/runs/x/step-" + std::to_string(step));
  event.mutable_checkpoint()->set_size_bytes(3 << 20);
  return event;
}

}  // namespace trainyard::client
