#include "worker/diagnostics/ledger.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <utility>

#include "worker/diagnostics/block_cache.h"

namespace trainyard {
namespace {

// `tracks` is set while the thread creates tracked memory; `tracked_bytes` counts the thread's allocations meanwhile.
thread_local bool tracks = false;
thread_local int64_t tracked_bytes = 0;

int64_t SizeOf(void* memory) { return static_cast<int64_t>(malloc_usable_size(memory)); }

}  // namespace

// Allocates as LibTorch does, but counts the bytes, and caches large blocks for the next step. A freed block's size is
// read from malloc, so blocks need no header.
class CountingAllocator final : public at::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    void* memory = Blocks().Allocate(bytes);
    if (memory != nullptr) Ledger::ForProcess().Allocated(SizeOf(memory));
    return {memory, memory, &Delete, at::Device(at::DeviceType::CPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &Delete; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

  static void Delete(void* memory) {
    if (memory == nullptr) return;
    Ledger::ForProcess().Freed(SizeOf(memory));
    Blocks().Free(memory);
  }

  static BlockCache& Blocks() {
    static auto* blocks =
        new BlockCache({.allocate = c10::alloc_cpu,
                        .free = c10::free_cpu,
                        .size_of = [](const void* block) { return malloc_usable_size(const_cast<void*>(block)); },
                        .idle = [](int64_t delta) { Ledger::ForProcess().counter(MemoryKind::kReserved).Add(delta); }});
    return *blocks;
  }
};

const char* MemoryKindName(MemoryKind kind) {
  constexpr const char* kNames[] = {"parameters",  "gradients", "optimizer", "buffers",
                                    "activations", "host",      "reserved",  "snapshots"};
  return kNames[static_cast<int>(kind)];
}

Ledger& Ledger::ForProcess() {
  // Never destroyed, because tensors with static lifetime are freed after everything else.
  static Ledger* ledger = new Ledger;
  static const bool is_installed = [] {
    c10::SetCPUAllocator(new CountingAllocator);
    return true;
  }();
  static_cast<void>(is_installed);
  return *ledger;
}

void Ledger::Allocated(int64_t bytes) {
  allocated_.Add(bytes);
  if (tracks) {
    tracked_bytes += bytes;
  } else {
    Enter(MemoryKind::kActivations, bytes);
  }
}

void Ledger::Freed(int64_t bytes) {
  allocated_.Correct(-bytes);
  Leave(MemoryKind::kActivations, bytes);
}

void Ledger::Enter(MemoryKind kind, int64_t bytes) {
  counter(kind).Add(bytes);
  if (CountsAsInUse(kind)) in_use_.Add(bytes);
}

void Ledger::Leave(MemoryKind kind, int64_t bytes) {
  counter(kind).Correct(-bytes);
  if (CountsAsInUse(kind)) in_use_.Correct(-bytes);
}

std::vector<KindUse> Ledger::Read() const {
  std::vector<KindUse> uses;
  for (int kind = 0; kind < kNumMemoryKinds; ++kind) {
    uses.push_back({static_cast<MemoryKind>(kind), kinds_[kind].now(), kinds_[kind].peak()});
  }
  return uses;
}

int64_t Ledger::num_blocks_allocated() const { return CountingAllocator::Blocks().counts().allocated; }

void Ledger::ResetPeaks() {
  for (PeakCounter& kind : kinds_) kind.ResetPeak();
  in_use_.ResetPeak();
  allocated_.ResetPeak();
}

TrackedMemory& TrackedMemory::operator=(TrackedMemory&& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(kind_, other.kind_);
  std::swap(bytes_, other.bytes_);
  std::swap(allocated_, other.allocated_);
  return *this;
}

TrackedMemory::~TrackedMemory() {
  if (ledger_ == nullptr) return;
  ledger_->Leave(kind_, bytes_);
  if (!allocated_) return;
  // The tensor is freed next, or has another owner: from now on it counts as untracked memory.
  ledger_->counter(MemoryKind::kActivations).Correct(bytes_);
  ledger_->in_use_.Correct(bytes_);
}

void TrackedMemory::SetKind(MemoryKind kind) {
  if (ledger_ == nullptr || kind == kind_) return;
  ledger_->Leave(kind_, bytes_);
  ledger_->Enter(kind, bytes_);
  kind_ = kind;
}

at::Tensor TrackTensor(Ledger* ledger, MemoryKind kind, TrackedMemory& held, absl::FunctionRef<at::Tensor()> make) {
  if (ledger == nullptr) return make();
  const bool tracked_before = std::exchange(tracks, true);
  const int64_t bytes_before = std::exchange(tracked_bytes, 0);
  at::Tensor tensor = make();
  tracks = tracked_before;
  const int64_t allocated_bytes = std::exchange(tracked_bytes, bytes_before);
  const at::DataPtr& memory = tensor.storage().data_ptr();
  TrackedMemory tracked;
  tracked.ledger_ = ledger;
  tracked.kind_ = kind;
  tracked.allocated_ = memory.get_deleter() == &CountingAllocator::Delete;
  tracked.bytes_ = tracked.allocated_ ? SizeOf(memory.get_context()) : static_cast<int64_t>(tensor.storage().nbytes());
  // Other memory that `make` has allocated counts as activations: Freed has already subtracted what was freed, and
  // other tensors own the rest.
  const int64_t other_bytes = allocated_bytes - (tracked.allocated_ ? tracked.bytes_ : 0);
  ledger->counter(MemoryKind::kActivations).Correct(other_bytes);
  ledger->in_use_.Correct(other_bytes);
  ledger->Enter(kind, tracked.bytes_);
  held = std::move(tracked);
  return tensor;
}

TrackedMemory TrackMemory(Ledger* ledger, MemoryKind kind, int64_t bytes) {
  TrackedMemory held;
  if (ledger == nullptr) return held;
  held.ledger_ = ledger;
  held.kind_ = kind;
  held.bytes_ = bytes;
  ledger->Enter(kind, bytes);
  return held;
}

}  // namespace trainyard
