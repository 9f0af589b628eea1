// A range of memory that all ranks of one host have mapped: counters through which ranks wait for one another, and
// space for tensors. It has no name in a file system, so nothing remains after its ranks have exited, however they
// ended.
//
// A tensor that does not fit into the space is processed in pieces. A `ticket` is the number of a piece; it increases
// by one with each piece and is the same on all ranks.
//
// A rank publishes its progress in counters that only it writes. A waiting rank spins briefly, then sleeps on a futex,
// and checks every 50 ms whether the segment was broken and whether the other rank is still running.
//
// Threads: one thread of each rank signals and waits; any other thread may call Break() at any time.
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
  KeyValueStore* store = nullptr;  // not owned; used only inside Join
  std::string prefix = "world/";   // prepended to every name in the store
  absl::Duration timeout = absl::Minutes(30);
  size_t piece_bytes = size_t{1} << 20;  // space per rank for one piece of a tensor; must be the same on every rank
  std::vector<int> world_ranks = {};     // the numbers of the ranks in error messages; empty: those in the group
};

class SharedSegment {
 public:
  // The progress of a rank with a piece: the others can read its input (kArrived); it has summed its share of the
  // result (kReduced); it no longer needs the piece (kDone).
  enum Stage { kArrived, kReduced, kDone, kNumStages };
  static constexpr size_t kOperationBytes = 96;
  static constexpr int kMaxBuffers = 256;  // per rank

  // Rank 0 creates the segment and the others map it. Returns when all ranks have mapped it. Possible errors: those of
  // the store; ResourceExhausted if there is not enough memory; DeadlineExceeded if a rank did not join; Unavailable if
  // a rank has exited.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Join(const SharedSegmentOptions& options);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // The space for the input of a rank, and the space for results. Pieces with even and odd tickets use different
  // halves.
  std::byte* InputSpace(int rank, uint32_t ticket) const;
  std::byte* ResultSpace(uint32_t ticket) const;
  size_t piece_bytes() const { return options_.piece_bytes; }
  void set_timeout(absl::Duration timeout) { timeout_ = timeout; }  // applies to later waits
  // The number by which messages name `rank` of the group.
  int NameOf(int rank) const { return options_.world_ranks.empty() ? rank : options_.world_ranks[rank]; }

  // Memory of this rank that the peers can read in place; null if it cannot be allocated or kMaxBuffers were created.
  std::shared_ptr<SharedBuffer> NewBuffer(size_t bytes);
  // Publishes where this rank's input for piece `ticket` is: at `data`, if that is inside one of its existing buffers;
  // otherwise, or if `data` is null, in InputSpace, and the result is false. The peers see the location once this rank
  // has signalled kArrived.
  bool SetLocation(uint32_t ticket, const void* data, size_t bytes);
  // The location that a peer has published; null: its InputSpace. Possible errors: Unavailable if the peer has exited.
  absl::StatusOr<const std::byte*> LocationOf(int rank, uint32_t ticket);

  // The operation that this rank runs; the others compare it with their own when this rank has arrived.
  void SetOperation(uint32_t ticket, absl::string_view operation);
  std::string OperationOf(int rank, uint32_t ticket) const;

  void Signal(Stage stage, uint32_t ticket);
  // Waits until every rank has signalled `stage` for `ticket` or a later piece; Await waits only for `rank`. Possible
  // errors of both: Unavailable if a rank has exited or has broken the segment; Aborted if this rank has broken it;
  // DeadlineExceeded after `timeout`, with a message that names all missing ranks, or if a rank has broken the segment
  // after such a wait.
  absl::Status AwaitAll(Stage stage, uint32_t ticket);
  // Returns whether AwaitAll would return without waiting.
  bool HaveAll(Stage stage, uint32_t ticket) const;
  absl::Status Await(int rank, Stage stage, uint32_t ticket);

  // Ends every current and future wait, here and in the other ranks. Idempotent. `gave_up`: because a wait of this rank
  // has reached its timeout; the other ranks then get DeadlineExceeded instead of Unavailable.
  void Break(bool gave_up = false);

 private:
  struct Header;
  struct Member;

  explicit SharedSegment(const SharedSegmentOptions& options) : options_(options), timeout_(options.timeout) {}
  std::string MissingRanks(Stage stage, uint32_t ticket) const;
  absl::Status Make();
  absl::Status Open();
  absl::Status Map(int fd);
  // Waits until all ranks have mapped the segment, and opens their processes so that CheckPeers sees them exit.
  absl::Status OpenPeers();
  absl::Status CheckPeers(int rank) const;
  Member& member(int rank) const;
  size_t size_bytes() const;

  const SharedSegmentOptions options_;
  absl::Duration timeout_;
  int fd_ = -1;
  Header* header_ = nullptr;
  std::vector<int> pidfds_;  // by rank; -1: this rank
  std::atomic<bool> is_broken_by_us_ = false;
  std::vector<std::weak_ptr<SharedBuffer>> buffers_;                            // of this rank
  std::vector<std::map<int32_t, std::shared_ptr<SharedBuffer>>> peer_buffers_;  // by rank: those that were mapped
};

}  // namespace trainyard
