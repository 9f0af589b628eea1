// Stores the state of the optimizer, and this rank's shards of the parameters, in host memory, so that the device holds
// only what it needs. The update copies this state tile by tile into device memory, runs AdamW over it there, and
// copies it back; a helper thread copies one tile while another is updated, on a GPU through a stream of its own. On a
// CPU both memories are the same, but the same path is used: losses are equal to those without offload, bit for bit,
// and the ledger shows the memory as it would be divided on a GPU.
//
//   offload.optimizer    masters (a second copy of the parameters, even if of the same type) and moments
//   offload.parameters   weights of a rank's shards; those of a unit are copied to the device before they are gathered
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "worker/diagnostics/ledger.h"
#include "worker/numerics/adamw.h"

namespace trainyard {

struct Offload {
  bool optimizer = false;
  bool parameters = false;
  bool any() const { return optimizer || parameters; }
};

// The host memory from which `device` copies fastest: pinned, for a GPU.
at::TensorOptions HostMemoryOf(at::Device device);

// Divides `ranges` into pieces of at most `tile_elements` each, in the same order; a piece has its part of the range's
// moments. Bounds are multiples of 16 elements. REQUIRES: the ranges have moments.
std::vector<AdamW::Range> CutIntoTiles(const std::vector<AdamW::Range>& ranges, int64_t tile_elements);

// The number of elements updated at a time where state is offloaded: `tile_elements`, but never more than an eighth of
// all, because the buffers of larger tiles would use much of the memory that offload saves.
int64_t OffloadedTile(int64_t tile_elements, int64_t all_elements);

// Which tensors of a range are in host memory.
struct HostTensors {
  bool parameters = false;  // those that the optimizer updates
  bool moments = false;
  bool weights = false;
};

// Runs the updates of an optimizer whose ranges are tiles. Belongs to the loop's thread, except for the copies.
class TiledUpdate {
 public:
  // Neither `optimizer` nor `ledger`, which may be null, is owned.
  TiledUpdate(AdamW& optimizer, const HostTensors& host, Ledger* ledger);
  ~TiledUpdate();
  TiledUpdate(const TiledUpdate&) = delete;
  TiledUpdate& operator=(const TiledUpdate&) = delete;

  // The same as AdamW::Step. Throws the exception of a copy that has failed, such as c10::Error if the device has.
  void Step(double lr, double gradient_scale);

 private:
  // Device memory for one tile, as long as the longest tile.
  struct Buffer {
    at::Tensor parameters, exp_avg, exp_avg_sq, weights;
    TrackedMemory uses[4];
  };

  AdamW::Range OnDevice(size_t tile) const;
  void Fetch(size_t tile);
  void WriteBack(size_t tile);
  // Queues a copy for the copy thread. Copies run in order, each after all work that was started on the device before.
  void QueueCopy(std::function<void()> copy);
  std::function<void()> OnStream(std::function<void()> copy) const;
  void AwaitCopies(uint64_t count);
  void RunCopies();

  AdamW& optimizer_;
  const HostTensors host_;
  Buffer buffers_[2];
  std::optional<c10::Stream> stream_;  // of the copies, on a GPU

  uint64_t num_queued_ = 0;  // used by the loop's thread only
  absl::Mutex mu_;
  std::deque<std::function<void()>> copies_ ABSL_GUARDED_BY(mu_);
  uint64_t num_done_ ABSL_GUARDED_BY(mu_) = 0;
  std::exception_ptr copy_error_ ABSL_GUARDED_BY(mu_);  // of the first copy that has failed; later copies are not made
  bool stop_requested_ ABSL_GUARDED_BY(mu_) = false;
  std::thread copy_thread_;  // last: it uses the other members
};

// The size of an element in bytes.
struct ElementSizes {
  int64_t weight = 4, master = 4, moment = 4;
};
// Returns the number of bytes of host memory for a rank's shard of `elements`.
int64_t HostBytes(const Offload& offload, int64_t elements, const ElementSizes& sizes);

// Checks that all ranks of this host together have enough memory. Fails with FailedPrecondition, which shows the
// estimate.
absl::Status CheckHostMemory(int64_t bytes_per_rank, int local_ranks, int64_t available_bytes);
// The number of bytes available without swapping, on the host and within the limits of this process' cgroup; 0 if the
// kernel does not report it. `proc` is a proc file system, for tests.
int64_t AvailableHostBytes(const std::string& proc = "/proc");

}  // namespace trainyard
