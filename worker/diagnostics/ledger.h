// What the memory of a rank is used for: bytes of each kind, now and at most, so that what a strategy promises of
// memory can be looked up and tested.
//
//   parameters   shards, whole parameters, and gathered ones while they are open
//   gradients    sums, and what is on its way to them
//   optimizer    moments, and the parameters that the optimizer updates where those are a second copy
//   buffers      what communication needs besides
//   activations  all other tensors: what the process' allocator has out, less all that is accounted for here
//   snapshots    copies of the state on their way to a checkpoint, shared memory included
//   host         of the first three, what was moved out of the device's memory (parallel/offload.h)
//   reserved     memory that is kept and idle: a slot between two uses, and blocks of tensors that are gone
//                (block_cache.h)
//
// Whoever keeps memory for long takes it from here, under a kind; the rest needs no care. One a process, as is the
// allocator. Thread-safe. Costs a few additions an allocation.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"

namespace trainyard {

enum class MemoryKind { kParameters, kGradients, kOptimizer, kBuffers, kActivations, kHost, kReserved, kSnapshots };
inline constexpr int kNumMemoryKinds = 8;
const char* MemoryKindName(MemoryKind kind);  // "parameters", as in MemoryUse.kind of the protocol

// A number and the most it has been.
class PeakCounter {
 public:
  void Add(int64_t delta) {
    const int64_t now = now_.fetch_add(delta, std::memory_order_relaxed) + delta;
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  // As Add, but for a correction that is no use of its own.
  void Correct(int64_t delta) { now_.fetch_add(delta, std::memory_order_relaxed); }
  void ResetPeak() { peak_ = now_.load(); }
  int64_t now() const { return now_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_ = 0, peak_ = 0;
};

struct KindUse {
  MemoryKind kind = MemoryKind::kActivations;
  int64_t bytes = 0;
  int64_t peak_bytes = 0;
};

class Ledger;

// Memory that is accounted for while this lives: as long as its tensor, or a little less.
class TrackedMemory {
 public:
  TrackedMemory() = default;  // of nothing
  TrackedMemory(TrackedMemory&& other) noexcept { *this = std::move(other); }
  TrackedMemory& operator=(TrackedMemory&& other) noexcept;
  ~TrackedMemory();

  // It serves something else from now on.
  void SetKind(MemoryKind kind);

 private:
  friend at::Tensor TrackTensor(Ledger*, MemoryKind, TrackedMemory&, absl::FunctionRef<at::Tensor()>);
  friend TrackedMemory TrackMemory(Ledger*, MemoryKind, int64_t);
  Ledger* ledger_ = nullptr;
  MemoryKind kind_ = MemoryKind::kReserved;
  int64_t bytes_ = 0;
  bool allocated_ = false;  // by the allocator that is counted
};

class Ledger {
 public:
  // That of this process. The first call makes its CPU allocator count: call it before the first tensor is made.
  static Ledger& ForProcess();

  std::vector<KindUse> Read() const;
  // In use on the device, of all kinds together: without host, reserved and snapshots.
  const PeakCounter& in_use() const { return in_use_; }
  // All that the allocator has out, whatever it is for.
  const PeakCounter& allocated() const { return allocated_; }
  // How many large blocks were asked of the system so far; in a steady step none.
  int64_t num_blocks_made() const;
  void ResetPeaks();

 private:
  friend class TrackedMemory;
  friend class CountingAllocator;
  friend at::Tensor TrackTensor(Ledger*, MemoryKind, TrackedMemory&, absl::FunctionRef<at::Tensor()>);
  friend TrackedMemory TrackMemory(Ledger*, MemoryKind, int64_t);

  Ledger() = default;
  PeakCounter& of(MemoryKind kind) { return kinds_[static_cast<int>(kind)]; }
  static bool InUse(MemoryKind kind) { return kind < MemoryKind::kHost; }
  void Allocated(int64_t bytes);
  void Freed(int64_t bytes);
  void Enter(MemoryKind kind, int64_t bytes);
  void Leave(MemoryKind kind, int64_t bytes);

  std::array<PeakCounter, kNumMemoryKinds> kinds_;
  PeakCounter in_use_, allocated_;
};

// The tensor that `make` makes, whose memory is accounted for under `kind` while `held` lives. `ledger` null: just
// makes it.
at::Tensor TrackTensor(Ledger* ledger, MemoryKind kind, TrackedMemory& held, absl::FunctionRef<at::Tensor()> make);

// Memory that is no tensor's and not of the allocator.
TrackedMemory TrackMemory(Ledger* ledger, MemoryKind kind, int64_t bytes);

}  // namespace trainyard
