// What communicators have in common: operations with a name and a number, the one that is waited in, and the first
// error, which stays.
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
  // Counts a new operation; returns its name: "all-reduce 17 (6553600 x fp32)", "barrier 18" of no tensor.
  std::string Start(absl::string_view kind, const at::Tensor& tensor);
  void WaitBegins(absl::string_view name);
  void WaitEnds();
  void Complete();

  // Keeps the first error; returns whether this is it.
  bool Fail(absl::Status status);
  absl::Status error() const;
  CollectiveProgress progress() const;

 private:
  mutable absl::Mutex mu_;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  CollectiveProgress progress_ ABSL_GUARDED_BY(mu_);
};

// "all-reduce 17 of rank 0 of 2 failed: ..."; an abort says enough as it is.
absl::Status AnnotateFailure(absl::string_view name, const Communicator& communicator, const absl::Status& status);

// The handle of an operation that its owner carries out when it is waited for: by Owner::CarryOut(const Operation&).
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
