// Memory for what a rank holds only for a short time: gathered parameters and unreduced gradients. All slots have the
// same length, so that each can hold either, and memory use is the same in every step.
//
// A slot may be released while an operation still reads it (a reduce-scatter under way). A computation that writes to
// the slot first waits for that operation. An all-gather through the same communicator need not wait, because
// operations run in the order in which they are started.
//
// Slots are not cleared. Belongs to the loop's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "worker/collectives/communicator.h"
#include "worker/diagnostics/ledger.h"

namespace trainyard {

class StreamWaits;

class SlotPool {
 public:
  // Creates `num_slots` slots of `bytes`; more only when all are held at the same time. `ledger` may be null; not
  // owned. `memory`: allocates these first slots, because its operations read them; may be null. `clock` measures
  // waits; not owned. `stream_waits` measures those of the device; may be null; not owned.
  SlotPool(int64_t bytes, int num_slots, at::Device device, Ledger* ledger, Communicator* memory, Clock& clock,
           StreamWaits* stream_waits);

  // Returns the index of a slot that nothing reads or writes. Waits if operations still use all free slots. Fails with
  // the errors of such an operation.
  absl::StatusOr<int> AcquireForCompute();
  // Returns the index of a slot for an operation of `communicator` to write, preferably one that only an earlier
  // operation of the same communicator still uses. Fails as AcquireForCompute does.
  absl::StatusOr<int> AcquireForGather(const Communicator* communicator);

  // `pending`, if not null, is an operation of `communicator` that still uses the slot.
  void Release(int slot, std::shared_ptr<Collective> pending = nullptr, const Communicator* communicator = nullptr);

  // `operation` is complete and uses no slot any more.
  void Settled(const std::shared_ptr<Collective>& operation);

  // Returns the first `elements` of `type` of a slot, flat.
  at::Tensor Memory(int slot, at::ScalarType type, int64_t elements) const;
  int num_slots() const { return static_cast<int>(slots_.size()); }
  int num_held() const;
  // The time for which this rank has waited for operations that used slots.
  double waited_s() const { return waited_s_; }

 private:
  struct Slot {
    at::Tensor memory = {};  // bytes
    TrackedMemory use = {};
    bool held = false;
    std::shared_ptr<Collective> pending = nullptr;
    const Communicator* communicator = nullptr;
    uint64_t released = 0;  // ascending number, to find the oldest
  };

  int Add(Communicator* memory = nullptr);
  absl::StatusOr<int> Acquire(MemoryKind kind);
  absl::StatusOr<int> Claim(int slot, MemoryKind kind);

  const int64_t bytes_;
  const at::Device device_;
  Ledger* const ledger_;
  Clock& clock_;
  StreamWaits* const stream_waits_;
  std::vector<Slot> slots_;
  uint64_t num_released_ = 0;
  double waited_s_ = 0;
};

}  // namespace trainyard
