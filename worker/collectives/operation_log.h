// What each communicator and channel records: numbered operation names, the operation that a thread waits in, and the
// first error, which is permanent.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "worker/collectives/communicator.h"

namespace trainyard {

// Thread-safe.
class OperationLog {
 public:
  // Counts a new operation and returns its name: "all-reduce 17 (6553600 x fp32)", or "barrier 18" without a tensor.
  std::string Start(absl::string_view kind, const at::Tensor& tensor);
  // The same with other details than those of a tensor: "packet 17 (chunk 1, micro-batch 3)".
  std::string Start(absl::string_view kind, absl::string_view details);
  void WaitBegins(absl::string_view name);
  void WaitEnds();
  void Complete();

  // Stores the first error; returns whether `status` is that first one.
  bool Fail(absl::Status status);
  absl::Status error() const;
  CollectiveProgress progress() const;

 private:
  mutable absl::Mutex mu_;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  CollectiveProgress progress_ ABSL_GUARDED_BY(mu_);
};

// "all-reduce 17 of rank 0 of 2 failed: ..."; an Aborted status is returned unchanged.
absl::Status AnnotateFailure(absl::string_view name, const Communicator& communicator, const absl::Status& status);

// The handle of an operation. Wait makes the owner run the operation, through Owner::CarryOut(const Operation&).
template <typename Owner, typename Operation>
class DeferredCollective final : public Collective {
 public:
  DeferredCollective(Owner& owner, std::shared_ptr<Operation> operation)
      : owner_(owner), operation_(std::move(operation)) {}
  absl::Status Wait() override { return owner_.CarryOut(*operation_); }

 private:
  Owner& owner_;
  std::shared_ptr<Operation> operation_;
};

}  // namespace trainyard
