// Accounts for the memory of a rank: the bytes of each kind, now and at the peak, so that the memory use that a
// strategy promises can be reported and tested.
//
//   parameters   shards, whole parameters, and gathered parameters while they are in use
//   gradients    sums of gradients, and gradients that will be added to these sums
//   optimizer    moments, and master weights where they are a second copy
//   buffers      additional memory for communication
//   activations  all other tensors: the memory that the process's allocator has handed out and that has no other kind
//   snapshots    copies of the state on their way to a checkpoint, shared memory included
//   host         parameters and optimizer state that are offloaded from the device (parallel/offload.h)
//   reserved     idle cached memory: slots between two uses (slot_pool.h), and blocks of freed tensors (block_cache.h)
//
// Code that holds memory for long registers it under a kind (TrackTensor, TrackMemory); other tensors need no special
// care. There is one ledger per process, as there is one allocator. Thread-safe. Costs a few additions per allocation.
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

// A number and its maximum so far.
class PeakCounter {
 public:
  void Add(int64_t delta) {
    const int64_t now = now_.fetch_add(delta, std::memory_order_relaxed) + delta;
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  // Like Add, but for a correction, which does not raise the peak.
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

// Memory that is accounted for while this object exists. The tensor must not be freed before this object.
class TrackedMemory {
 public:
  TrackedMemory() = default;  // tracks nothing
  TrackedMemory(TrackedMemory&& other) noexcept { *this = std::move(other); }
  TrackedMemory& operator=(TrackedMemory&& other) noexcept;
  ~TrackedMemory();

  // Changes the kind: the memory serves another purpose from now on.
  void SetKind(MemoryKind kind);

 private:
  friend at::Tensor TrackTensor(Ledger*, MemoryKind, TrackedMemory&, absl::FunctionRef<at::Tensor()>);
  friend TrackedMemory TrackMemory(Ledger*, MemoryKind, int64_t);
  Ledger* ledger_ = nullptr;
  MemoryKind kind_ = MemoryKind::kReserved;
  int64_t bytes_ = 0;
  bool allocated_ = false;  // by the counting allocator
};

class Ledger {
 public:
  // The ledger of this process. The first call installs the counting CPU allocator, so it must precede the first
  // tensor.
  static Ledger& ForProcess();

  std::vector<KindUse> Read() const;
  // Memory in use on the device, all kinds together except host, reserved and snapshots.
  const PeakCounter& in_use() const { return in_use_; }
  // All memory that the allocator has handed out.
  const PeakCounter& allocated() const { return allocated_; }
  // The number of large blocks requested from the system so far; a steady step requests none.
  int64_t num_blocks_allocated() const;
  void ResetPeaks();

 private:
  friend class TrackedMemory;
  friend class CountingAllocator;
  friend at::Tensor TrackTensor(Ledger*, MemoryKind, TrackedMemory&, absl::FunctionRef<at::Tensor()>);
  friend TrackedMemory TrackMemory(Ledger*, MemoryKind, int64_t);

  Ledger() = default;
  PeakCounter& counter(MemoryKind kind) { return kinds_[static_cast<int>(kind)]; }
  static bool CountsAsInUse(MemoryKind kind) { return kind < MemoryKind::kHost; }
  void Allocated(int64_t bytes);
  void Freed(int64_t bytes);
  void Enter(MemoryKind kind, int64_t bytes);
  void Leave(MemoryKind kind, int64_t bytes);

  std::array<PeakCounter, kNumMemoryKinds> kinds_;
  PeakCounter in_use_, allocated_;
};

// Returns the tensor that `make` creates, and accounts for its memory under `kind` while `held` exists. If `ledger` is
// null, only calls `make`.
at::Tensor TrackTensor(Ledger* ledger, MemoryKind kind, TrackedMemory& held, absl::FunctionRef<at::Tensor()> make);

// Accounts for memory that is not a tensor's and does not come from the allocator.
TrackedMemory TrackMemory(Ledger* ledger, MemoryKind kind, int64_t bytes);

}  // namespace trainyard
