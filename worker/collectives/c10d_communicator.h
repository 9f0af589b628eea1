// What communicators over c10d's groups (gloo, NCCL) have in common: the operations that both of them have, what
// LibTorch throws as a status, and what becomes of an operation that could not be started. How one is waited for, and
// how the group is broken, is each one's own.
//
// Threads and errors: those of a Communicator.
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

// Without the stack that c10::Error appends, on one line: DeadlineExceeded for what took too long, else Unavailable.
absl::Status StatusFromException(const std::exception& error);

class C10dCommunicator : public virtual Communicator {
 public:
  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override;
  std::unique_ptr<Collective> Broadcast(const at::Tensor& tensor, int root) override;
  std::unique_ptr<Collective> AllGather(const at::Tensor& out, const at::Tensor& in) override;
  void Abort(absl::string_view reason) override { (void)Break(absl::AbortedError(reason)); }

  // Ends all operations with the first such error, which is returned.
  virtual absl::Status Break(absl::Status status) = 0;
  OperationLog& log() { return log_; }

 protected:
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;
  // An operation that has its number; `work` is null where it could not be started, and `status` says why.
  struct Started {
    std::string name;
    WorkPointer work;
    absl::Status status;
  };

  // `group` is asked for the three operations above; it must outlive the last of them.
  C10dCommunicator(int rank, int world_size, c10d::Backend& group)
      : rank_(rank), world_size_(world_size), group_(group) {}

  // Moves earlier operations along, counts a new one and has `launch` start it; what that throws breaks the group.
  Started Start(absl::string_view kind, const at::Tensor& tensor, absl::FunctionRef<WorkPointer()> launch);
  virtual std::unique_ptr<Collective> NewHandle(Started started) = 0;

  OperationLog log_;

 private:
  const int rank_;
  const int world_size_;
  c10d::Backend& group_;
};

}  // namespace trainyard
