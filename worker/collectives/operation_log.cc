#include "worker/collectives/operation_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/collectives/type_name.h"

namespace trainyard {

std::string OperationLog::Start(absl::string_view kind, const at::Tensor& tensor) {
  if (!tensor.defined()) return Start(kind, "");
  return Start(kind, absl::StrCat(tensor.numel(), " x ", TypeName(tensor.scalar_type())));
}

std::string OperationLog::Start(absl::string_view kind, absl::string_view details) {
  absl::MutexLock lock(&mu_);
  std::string name = absl::StrCat(kind, " ", ++progress_.num_started);
  if (!details.empty()) absl::StrAppend(&name, " (", details, ")");
  progress_.last_started = name;
  return name;
}

void OperationLog::WaitBegins(absl::string_view name) {
  absl::MutexLock lock(&mu_);
  progress_.waits_in = std::string(name);
}

void OperationLog::WaitEnds() {
  absl::MutexLock lock(&mu_);
  progress_.waits_in.clear();
}

void OperationLog::Complete() {
  absl::MutexLock lock(&mu_);
  ++progress_.num_completed;
}

bool OperationLog::Fail(absl::Status status) {
  absl::MutexLock lock(&mu_);
  if (!error_.ok()) return false;
  error_ = std::move(status);
  return true;
}

absl::Status OperationLog::error() const {
  absl::MutexLock lock(&mu_);
  return error_;
}

CollectiveProgress OperationLog::progress() const {
  absl::MutexLock lock(&mu_);
  return progress_;
}

absl::Status AnnotateFailure(absl::string_view name, const Communicator& communicator, const absl::Status& status) {
  if (absl::IsAborted(status)) return status;
  return absl::Status(status.code(), absl::StrCat(name, " of rank ", communicator.rank(), " of ",
                                                  communicator.world_size(), " failed: ", status.message()));
}

}  // namespace trainyard
