// A communicator runs collective operations among the ranks of a process group. It is all that strategies see of the
// network. Every rank starts the same operations in the same order; each operation is asynchronous, and its handle
// waits for it.
//
//   auto sum = communicator.AllReduceSum(bucket);   // starts
//   ...                                             // computes
//   RETURN_IF_ERROR(sum->Wait());                   // `bucket` holds the sum of all ranks' buckets
//
// Rules for every implementation and its callers:
//   - Operations of one communicator run in the order in which they were started, one after another. So an operation
//     may be started on memory that an earlier one still reads. The result of an operation is visible, also to other
//     operations, only after its Wait has returned.
//   - Operations of different communicators must not touch the same memory, unless the first has been waited for.
//   - Every rank must start and wait for the operations of all communicators of a process in the same order: shared
//     memory runs an operation only when it is waited for.
//   - All ranks of an operation get bitwise identical results. Sums are made in rank order on every transport
//     (rank_sum.h, [Note: one order of sums]); only NCCL uses orders of its own.
//
// Threads: one thread starts operations and waits for them. Any other thread may call Abort() and progress() at any
// time, also during a wait.
//
// Possible errors of every Wait:
//   Aborted           Abort() was called: the generation is over.
//   Unavailable       a peer has exited, its connection is broken, or it runs a different operation: the generation
//                     cannot continue.
//   DeadlineExceeded  no progress within the group's timeout.
// After the first error the communicator is unusable: every further operation fails with that error.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/key_value_store.h"

namespace trainyard {

// One operation in progress. Must not be waited for after its communicator is destroyed. It may be destroyed without a
// wait; its tensors stay alive until the operation has ended.
class Collective {
 public:
  virtual ~Collective() = default;
  // Returns when the operation has ended on this rank. A second call returns the same status.
  virtual absl::Status Wait() = 0;
};

// For status pages and for finding the rank that blocks a group: two ranks of a hung group differ in these values.
struct CollectiveProgress {
  uint64_t num_started = 0;
  uint64_t num_completed = 0;
  std::string waits_in = "";      // "all-reduce 17 (6553600 x fp32)"; empty: no thread waits
  std::string last_started = "";  // the newest operation, in the same format
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // In place: `tensor` becomes the sum over all ranks. All operations require dense tensors on this communicator's
  // device.
  virtual std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) = 0;
  // In place: `tensor` becomes a copy of the tensor of `root`.
  virtual std::unique_ptr<Collective> Broadcast(const at::Tensor& tensor, int root) = 0;
  // `out` becomes the concatenation of all ranks' `in`. `in` may be exactly this rank's part of `out`; no other overlap
  // is allowed. REQUIRES: out.numel() == in.numel() x world_size.
  virtual std::unique_ptr<Collective> AllGather(const at::Tensor& out, const at::Tensor& in) = 0;
  // `out` becomes this rank's part of the sum over all ranks; `in` is unchanged. `out` may be exactly this rank's part
  // of `in`; no other overlap is allowed. REQUIRES: in.numel() == out.numel() x world_size.
  virtual std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) = 0;
  // Ends when every rank has started it.
  virtual std::unique_ptr<Collective> Barrier() = 0;
  // Like Barrier, but blocks until every rank has called it, and names missing ranks. Additional error:
  // DeadlineExceeded after `limit`. On rank 0, the message names the ranks that did not arrive; on the others, it names
  // rank 0, which did not release them. A rank that arrives late may get Unavailable, when rank 0 has given up.
  virtual absl::Status MonitoredBarrier(absl::Duration limit) = 0;

  // Ends every current and future operation with Aborted: a waiting thread returns within 200 ms, whatever its peers
  // do. Idempotent.
  virtual void Abort(absl::string_view reason) = 0;

  // Memory on which this communicator's operations are fastest, with unspecified content. Every rank must request the
  // same buffers in the same order. The buffer may outlive the communicator.
  virtual at::Tensor NewBuffer(int64_t numel, at::ScalarType type);

  // Advances the started operations as far as possible without waiting for peers. Operations end without this call,
  // too; a call between two pieces of computation lets them end earlier.
  virtual void AdvanceOperations() {}

  virtual CollectiveProgress progress() const = 0;
};

struct GlooOptions {
  int rank = 0;
  int world_size = 1;
  // An address of this host that the peers can reach; gloo listens there on a free port.
  std::string address = "127.0.0.1";
  // Not owned; used only inside NewGlooCommunicator. May be null in a world of 1.
  KeyValueStore* store = nullptr;
  // Prefix of every name in the store; each communicator needs its own.
  std::string prefix = "world/";
  // Applies to the rendezvous and to every later operation. It is long because a peer may save, evaluate or be stopped
  // for minutes and then continue. A dead host is detected much earlier (silence_watch.h, [Note: silence]).
  absl::Duration timeout = absl::Minutes(30);
};

// Connects to all peers over TCP; returns when all have joined. A world of 1 opens no socket and needs no store.
// Possible errors: InvalidArgument for an invalid rank or address; DeadlineExceeded if a peer did not join; Aborted if
// the store reports that the generation is over; Unavailable if a connection failed.
absl::StatusOr<std::unique_ptr<Communicator>> NewGlooCommunicator(const GlooOptions& options);

// Runs each kind of operation once and checks the results, so that no connection or buffer is created during training.
// It is separate from construction, so that the new communicator can be aborted during the warm-up.
absl::Status WarmUp(Communicator& communicator);

}  // namespace trainyard
