// What lies in host memory, so that the device holds only what it needs: the optimizer's state, and this rank's shards
// of the parameters. The update fetches it tile by tile into memory of the device, where AdamW runs over it, and takes
// it back; a helper thread copies one tile while another is updated, on a GPU through a stream of its own. On a CPU
// both memories are the same, but the path is not: losses are those without offload, bit for bit, and the ledger shows
// what would be where.
//
//   offload.optimizer    masters (a second copy of the parameters, if only here) and moments
//   offload.parameters   weights of a rank's shards; a unit's are copied to the device to be gathered
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
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

// Host memory that `device` copies fastest from: pinned, for a GPU.
at::TensorOptions HostMemoryOf(at::Device device);

// `ranges` in pieces of at most `tile_elements` each, in their order; a piece's moments are its range's. Bounds are
// multiples of 16 elements. REQUIRES: the ranges have moments.
std::vector<AdamW::Range> CutIntoTiles(const std::vector<AdamW::Range>& ranges, int64_t tile_elements);

// How many elements are updated at once where state is offloaded: `tile_elements`, but never more than an eighth of
// all, or nothing would be gained.
int64_t OffloadedTile(int64_t tile_elements, int64_t all_elements);

// Which tensors of a range lie in host memory.
struct HostTensors {
  bool parameters = false;  // that the optimizer updates
  bool moments = false;
  bool weights = false;
};

// The updates of an optimizer whose ranges are tiles. Belongs to the loop's thread, but for the copies.
class TiledUpdate {
 public:
  // Neither `optimizer` nor `ledger`, which may be null, is owned.
  TiledUpdate(AdamW& optimizer, const HostTensors& host, Ledger* ledger);
  ~TiledUpdate();
  TiledUpdate(const TiledUpdate&) = delete;
  TiledUpdate& operator=(const TiledUpdate&) = delete;

  // As AdamW::Step.
  void Step(double lr, double gradient_scale);

 private:
  // A tile on the device: as long as the longest.
  struct Buffer {
    at::Tensor parameters, exp_avg, exp_avg_sq, weights;
    TrackedMemory uses[4];
  };

  AdamW::Range OnDevice(size_t tile) const;
  void Fetch(size_t tile);
  void TakeBack(size_t tile);
  // Copies in order, each behind all that the caller has asked of the device before.
  void Post(std::function<void()> copy);
  std::function<void()> OnStream(std::function<void()> copy) const;
  void AwaitCopies(uint64_t count);
  void CopyForever();

  AdamW& optimizer_;
  const HostTensors host_;
  Buffer buffers_[2];
  std::optional<c10::Stream> stream_;  // of the copies, on a GPU

  uint64_t num_posted_ = 0;  // of the loop's thread
  absl::Mutex mu_;
  std::deque<std::function<void()>> copies_ ABSL_GUARDED_BY(mu_);
  uint64_t num_done_ ABSL_GUARDED_BY(mu_) = 0;
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  std::thread helper_;  // last: it uses the others
};

// Bytes of host memory that a rank's shard of `elements` takes.
struct ElementSizes {
  int64_t weight = 4, master = 4, moment = 4;
};
int64_t HostBytes(const Offload& offload, int64_t elements, const ElementSizes& sizes);

// Whether the ranks of this host have room together. Possible errors: FailedPrecondition, with the estimate.
absl::Status CheckHostMemory(int64_t bytes_per_rank, int local_ranks, int64_t available_bytes);
// What can be had without swapping, of the host and within the limits of this process' cgroup; 0: the kernel does not
// say. `proc` is a proc file system, for tests.
int64_t AvailableHostBytes(const std::string& proc = "/proc");

}  // namespace trainyard
