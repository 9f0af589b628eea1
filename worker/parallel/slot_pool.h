// Memory for what a rank holds for a moment only: gathered parameters and unreduced gradients. All slots are equally
// long, so that any may be either, and memory is the same every step.
//
// A slot may be given back while an operation still reads it (a reduce-scatter on its way). Whoever computes into a
// slot waits for that operation; an all-gather need not, if it goes through the same communicator: operations run in
// the order started, so it is queued behind.
//
// A slot's content is what the last user left. Belongs to the loop's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"
#include "worker/diagnostics/ledger.h"

namespace trainyard {

class SlotPool {
 public:
  // Makes `num_slots` slots of `bytes` at once; more only when all are held at the same time. `ledger` may be
  // null; not owned. `memory`: whose operations read the slots, asked here only; may be null.
  SlotPool(int64_t bytes, int num_slots, at::Device device, Ledger* ledger = nullptr, Communicator* memory = nullptr);

  // Index of a slot that nothing reads or writes any more. Waits when there is none but such as an operation still
  // uses. Possible errors: those of that operation.
  absl::StatusOr<int> AcquireForCompute();
  // Index of a slot to be written by an operation of `communicator`, preferably one that is only waiting for an earlier
  // operation of it. Possible errors: as above.
  absl::StatusOr<int> AcquireForGather(const Communicator* communicator);

  // `pending`, if not null, is an operation of `communicator` that still uses the slot.
  void Release(int slot, std::shared_ptr<Collective> pending = nullptr, const Communicator* communicator = nullptr);

  // `operation` was waited for: no slot is in its use any more.
  void Settled(const std::shared_ptr<Collective>& operation);

  // The first `elements` of `type` of a slot, flat.
  at::Tensor Memory(int slot, at::ScalarType type, int64_t elements) const;
  int num_slots() const { return static_cast<int>(slots_.size()); }
  int num_held() const;

 private:
  struct Slot {
    at::Tensor memory = {};  // bytes
    TrackedMemory use = {};
    bool held = false;
    std::shared_ptr<Collective> pending = nullptr;
    const Communicator* communicator = nullptr;
    uint64_t released = 0;  // running number, to find the oldest
  };

  int Add(Communicator* memory = nullptr);
  absl::StatusOr<int> Acquire(MemoryKind kind);
  absl::StatusOr<int> Take(int slot, MemoryKind kind);

  const int64_t bytes_;
  const at::Device device_;
  Ledger* const ledger_;
  std::vector<Slot> slots_;
  uint64_t num_released_ = 0;
};

}  // namespace trainyard
