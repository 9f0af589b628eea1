// The common part of the communicators over c10d's process groups (gloo, NCCL): the operations that both support, the
// conversion of LibTorch's exceptions into statuses, and the handling of an operation that could not be started. Each
// subclass defines how to wait for an operation and how to break the group.
//
// Threads and errors: the same as for Communicator.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/collectives/communicator.h"
#include "worker/collectives/operation_log.h"

namespace trainyard {

// The exception's message on one line, without the stack trace that c10::Error appends. Returns DeadlineExceeded for a
// timeout, otherwise Unavailable.
absl::Status StatusFromException(const std::exception& error);

class C10dCommunicator : public virtual Communicator {
 public:
  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override;
  std::unique_ptr<Collective> Broadcast(const at::Tensor& tensor, int root) override;
  std::unique_ptr<Collective> AllGather(const at::Tensor& out, const at::Tensor& in) override;
  void Abort(absl::string_view reason) override { (void)Break(absl::AbortedError(reason)); }

  // Ends all operations with the error of the first call, and returns that error.
  virtual absl::Status Break(absl::Status status) = 0;
  OperationLog& log() { return log_; }

 protected:
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;
  // An operation that has been numbered. If it could not be started, `work` is null and `status` gives the reason.
  struct Started {
    std::string name;
    WorkPointer work;
    absl::Status status;
  };

  // `group` runs the three operations above; it must outlive the last of them.
  C10dCommunicator(int rank, int world_size, c10d::Backend& group)
      : rank_(rank), world_size_(world_size), group_(group) {}

  // Advances earlier operations, numbers a new one and calls `launch` to start it. An exception from `launch` breaks
  // the group.
  Started Start(absl::string_view kind, const at::Tensor& tensor, absl::FunctionRef<WorkPointer()> launch);
  virtual std::unique_ptr<Collective> NewHandle(Started started) = 0;

  OperationLog log_;

 private:
  const int rank_;
  const int world_size_;
  c10d::Backend& group_;
};

}  // namespace trainyard
