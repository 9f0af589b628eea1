// A communicator runs collective operations among the ranks of a group: all that strategies see of the network. Every
// rank starts the same operations in the same order; each is asynchronous and is waited for through its handle.
//
//   auto sum = communicator.AllReduceSum(bucket);   // starts
//   ...                                             // computes
//   RETURN_IF_ERROR(sum->Wait());                   // `bucket` holds the sum of all ranks' buckets
//
// What every implementation keeps:
//   - Operations of one communicator are carried out in the order in which they were started, one after another. So one
//     may be started into memory that another before it still reads. What an operation writes is there, for operations
//     too, once it was waited for.
//   - What two operations of different communicators touch must differ, unless the first was waited for.
//   - Operations of all communicators of a process are started and waited for in one order on every rank: shared memory
//     carries them out only then.
//   - All ranks of an operation have the same bits of its result. Sums are made in the order of the ranks, whatever the
//     transport [Note: one order of sums]; NCCL alone has orders of its own.
//
// Threads: operations are started and waited for by one thread. Abort() and progress() may be called from any other at
// any time, also while that thread waits.
//
// Possible errors, of every Wait:
//   Aborted           Abort() was called: the generation is over.
//   Unavailable       a peer has gone, its connection is broken, or it takes part in another operation: the
//                     generation is as good as over.
//   DeadlineExceeded  no progress within the group's timeout.
// After the first error the communicator is of no more use, and every further operation fails with that error.
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

// One operation under way; must not be waited for once its communicator is gone. Destroying it without waiting is
// allowed; its tensors are kept alive until it has ended.
class Collective {
 public:
  virtual ~Collective() = default;
  // Returns when the operation is over on this rank. A second call returns the same status.
  virtual absl::Status Wait() = 0;
};

// For status pages and for finding who holds up whom: two ranks of a group that hang differ here.
struct CollectiveProgress {
  uint64_t num_started = 0;
  uint64_t num_completed = 0;
  std::string waits_in = "";      // "all-reduce 17 (6553600 x fp32)"; empty: no thread waits
  std::string last_started = "";  // the newest operation, in the same words
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // In place: `tensor` becomes the sum over all ranks. Tensors of all operations are dense and on this communicator's
  // device.
  virtual std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) = 0;
  // In place: `tensor` becomes that of `root`.
  virtual std::unique_ptr<Collective> Broadcast(const at::Tensor& tensor, int root) = 0;
  // `out` becomes the ranks' `in` one after another. `in` may be exactly this rank's part of `out`; no other overlap.
  // REQUIRES: out.numel() == in.numel() x world_size.
  virtual std::unique_ptr<Collective> AllGather(const at::Tensor& out, const at::Tensor& in) = 0;
  // `out` becomes this rank's part of the sum over all ranks; `in` keeps its values. `out` may be exactly this rank's
  // part of `in`; no other overlap. REQUIRES: in.numel() == out.numel() x world_size.
  virtual std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) = 0;
  // Ends once every rank has started it.
  virtual std::unique_ptr<Collective> Barrier() = 0;
  // As Barrier, but waits here and says who is missing: returns once every rank has called it. Possible errors, besides
  // those of a Wait: DeadlineExceeded after `limit`, which names the ranks that did not come (on rank 0; the others
  // name rank 0, which did not let them go).
  virtual absl::Status Meet(absl::Duration limit) = 0;

  // Ends every operation, under way or to come, with Aborted: a thread that waits is out within 200 ms, whatever its
  // peers do. Idempotent.
  virtual void Abort(absl::string_view reason) = 0;

  // Memory that this communicator's operations are fastest on; what is in it is unspecified. Every rank asks for the
  // same buffers in the same order. It may outlive the communicator.
  virtual at::Tensor NewBuffer(int64_t numel, at::ScalarType type);

  // Moves what was started along as far as the peers allow without waiting for them. Never needed for an operation to
  // end; worth calling between two pieces of computation.
  virtual void Progress() {}

  virtual CollectiveProgress progress() const = 0;
};

struct GlooOptions {
  int rank = 0;
  int world_size = 1;
  // Address of this host that the peers can reach; gloo listens there on a free port.
  std::string address = "127.0.0.1";
  // Not owned; asked only inside NewGlooCommunicator. May be null in a world of 1.
  KeyValueStore* store = nullptr;
  // Goes before every name in the store: one a communicator.
  std::string prefix = "world/";
  // Of the rendezvous, and of every operation afterwards. Long on purpose: a peer may save, evaluate or be stopped for
  // minutes and come back. One that is gone is noticed by its silence within 15 s, see [Note: silence].
  absl::Duration timeout = absl::Minutes(30);
};

// Connects to all peers over TCP; returns when all have come. A world of 1 opens no socket and needs no store.
// Possible errors: InvalidArgument for a rank or an address that cannot be; DeadlineExceeded when a peer did not come;
// Aborted when the store says that the generation is over; Unavailable when a connection failed.
absl::StatusOr<std::unique_ptr<Communicator>> NewGlooCommunicator(const GlooOptions& options);

// Runs each kind of operation once, so that no connection or buffer is made during training, and checks the results.
// Apart from construction so that the new communicator can be aborted meanwhile.
absl::Status WarmUp(Communicator& communicator);

}  // namespace trainyard
