// A stretch of memory that all ranks of one host have mapped: a board of counters by which they wait for one another,
// and room to put tensors into. Nothing of it has a name in a file system, so nothing is left when its ranks are gone,
// however they ended.
//
// A rank tells how far it is by counters that only it writes; who waits for one spins briefly, then sleeps on a futex,
// and looks every 50 ms whether the segment was broken and whether the rank it waits for still lives.
//
// Threads: one thread of each rank tells and waits; Break() may be called from any other at any time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/key_value_store.h"
#include "worker/collectives/shared_buffer.h"

namespace trainyard {

struct SharedSegmentOptions {
  int rank = 0;
  int world_size = 1;
  KeyValueStore* store = nullptr;  // not owned; asked only inside Join
  std::string prefix = "world/";   // goes before every name in the store
  absl::Duration timeout = absl::Minutes(30);
  size_t piece_bytes = size_t{1} << 20;  // room a rank has for one piece of a tensor; the same on every rank
};

class SharedSegment {
 public:
  // What a rank has done with piece `ticket`: put its part where the others read it; summed its share; needs nothing of
  // it any more.
  enum Stage { kArrived, kReduced, kDone, kNumStages };
  static constexpr size_t kOperationBytes = 96;
  static constexpr int kMaxBuffers = 256;  // of a rank

  // Rank 0 makes the segment, the others map it; returns when all have. Possible errors: those of the store;
  // ResourceExhausted when there is no memory; DeadlineExceeded when a rank did not come; Unavailable when one ended.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Join(const SharedSegmentOptions& options);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // Room of a rank, and room for results, for pieces of even and of odd tickets.
  std::byte* part(int rank, uint32_t ticket) const;
  std::byte* result(uint32_t ticket) const;
  size_t piece_bytes() const { return options_.piece_bytes; }
  void set_timeout(absl::Duration timeout) { timeout_ = timeout; }  // of waits from here on

  // Memory of this rank's own that the peers can read where it lies; null when there is none to be had, or too many
  // were made.
  std::shared_ptr<SharedBuffer> NewBuffer(size_t bytes);
  // Says that what this rank gives to piece `ticket` lies at `data`, in one of those that still live, instead of in its
  // part; null: in its part. Told with kArrived. Returns false when `data` is in none.
  bool SetLocation(uint32_t ticket, const void* data, size_t bytes);
  // Where a peer said so; null: in its part. Possible errors: Unavailable when its memory is gone.
  absl::StatusOr<const std::byte*> LocationOf(int rank, uint32_t ticket);

  // What this rank takes part in; the others compare it with their own once it has arrived.
  void SetOperation(uint32_t ticket, absl::string_view operation);
  std::string OperationOf(int rank, uint32_t ticket) const;

  void Signal(Stage stage, uint32_t ticket);
  // Waits until every rank has told at least `ticket` (or `rank` alone has). Possible errors: Unavailable when a rank
  // has ended or has broken the segment; Aborted when this rank has; DeadlineExceeded after `timeout`.
  // A deadline's message names all ranks that are missing.
  absl::Status AwaitAll(Stage stage, uint32_t ticket);
  // Whether they have, without waiting.
  bool HaveAll(Stage stage, uint32_t ticket) const;
  absl::Status Await(int rank, Stage stage, uint32_t ticket);

  // Ends every wait, here and in the other ranks, now and for ever. Idempotent.
  void Break();

 private:
  struct Board;
  struct Member;

  explicit SharedSegment(const SharedSegmentOptions& options) : options_(options), timeout_(options.timeout) {}
  std::string Missing(Stage stage, uint32_t ticket) const;
  absl::Status Make();
  absl::Status Open();
  absl::Status Map(int fd);
  absl::Status Meet();
  absl::Status CheckPeers(int rank) const;
  Member& member(int rank) const;
  size_t size_bytes() const;

  const SharedSegmentOptions options_;
  absl::Duration timeout_;
  int fd_ = -1;
  Board* board_ = nullptr;
  std::vector<int> pidfds_;  // by rank; -1: this rank
  std::atomic<bool> broken_here_ = false;
  std::vector<std::weak_ptr<SharedBuffer>> buffers_;                        // of this rank
  std::vector<std::map<int32_t, std::shared_ptr<SharedBuffer>>> of_peers_;  // by rank: those that were read
};

}  // namespace trainyard
