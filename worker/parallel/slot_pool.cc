#include "worker/parallel/slot_pool.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "common/status_macros.h"
#include "worker/parallel/timed_wait.h"

namespace trainyard {

SlotPool::SlotPool(int64_t bytes, int num_slots, at::Device device, Ledger* ledger, Communicator* memory, Clock& clock,
                   StreamWaits* stream_waits)
    : bytes_(bytes), device_(device), ledger_(ledger), clock_(clock), stream_waits_(stream_waits) {
  for (int i = 0; i < num_slots; ++i) Add(memory);
}

absl::StatusOr<int> SlotPool::AcquireForCompute() { return Acquire(MemoryKind::kGradients); }

absl::StatusOr<int> SlotPool::AcquireForGather(const Communicator* communicator) {
  for (int i = 0; i < num_slots(); ++i) {
    Slot& slot = slots_[i];
    if (slot.held || slot.pending == nullptr || slot.communicator != communicator) continue;
    slot.pending = nullptr;  // not waited for: a communicator runs the gather after that operation
    return Claim(i, MemoryKind::kParameters);
  }
  return Acquire(MemoryKind::kParameters);
}

absl::StatusOr<int> SlotPool::Acquire(MemoryKind kind) {
  int oldest = -1;
  for (int i = 0; i < num_slots(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.held) continue;
    if (slot.pending == nullptr) return Claim(i, kind);
    if (oldest < 0 || slot.released < slots_[oldest].released) oldest = i;
  }
  return Claim(oldest < 0 ? Add() : oldest, kind);
}

void SlotPool::Release(int slot, std::shared_ptr<Collective> pending, const Communicator* communicator) {
  slots_[slot].held = false;
  if (pending == nullptr) slots_[slot].use.SetKind(MemoryKind::kReserved);
  slots_[slot].pending = std::move(pending);
  slots_[slot].communicator = communicator;
  slots_[slot].released = ++num_released_;
}

void SlotPool::Settled(const std::shared_ptr<Collective>& operation) {
  for (Slot& slot : slots_) {
    if (slot.pending != operation) continue;
    slot.pending = nullptr;
    if (!slot.held) slot.use.SetKind(MemoryKind::kReserved);
  }
}

at::Tensor SlotPool::Memory(int slot, at::ScalarType type, int64_t elements) const {
  const int64_t bytes = elements * static_cast<int64_t>(c10::elementSize(type));
  return slots_[slot].memory.narrow(0, 0, bytes).view(type);
}

int SlotPool::num_held() const {
  return static_cast<int>(std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.held; }));
}

int SlotPool::Add(Communicator* memory) {
  Slot slot;
  slot.memory = TrackTensor(ledger_, MemoryKind::kReserved, slot.use, [&] {
    if (memory != nullptr) return memory->NewBuffer(bytes_, at::kByte);
    return at::empty({bytes_}, at::TensorOptions().dtype(at::kByte).device(device_));
  });
  slots_.push_back(std::move(slot));
  return num_slots() - 1;
}

absl::StatusOr<int> SlotPool::Claim(int slot, MemoryKind kind) {
  if (slots_[slot].pending != nullptr) {
    RETURN_IF_ERROR(TimedWait(*slots_[slot].pending, clock_, waited_s_, stream_waits_));
    slots_[slot].pending = nullptr;
  }
  slots_[slot].held = true;
  slots_[slot].use.SetKind(kind);
  return slot;
}

}  // namespace trainyard
