#include "worker/parallel/communicator_tensor_group.h"

#include <utility>

#include "worker/parallel/autograd_hooks.h"
#include "worker/parallel/timed_wait.h"

namespace trainyard {

void CommunicatorTensorGroup::StartSum(const at::Tensor& tensor) {
  operations_.push_back(communicator_.AllReduceSum(tensor));
}

void CommunicatorTensorGroup::StartAllGather(const at::Tensor& out, const at::Tensor& in) {
  operations_.push_back(communicator_.AllGather(out, in));
}

void CommunicatorTensorGroup::StartReduceScatter(const at::Tensor& out, const at::Tensor& in) {
  operations_.push_back(communicator_.ReduceScatterSum(out, in));
}

void CommunicatorTensorGroup::Wait() {
  for (const std::unique_ptr<Collective>& operation : std::exchange(operations_, {})) {
    if (absl::Status status = TimedWait(*operation, clock_, waited_s_); !status.ok()) {
      throw UnitError(std::move(status));
    }
  }
}

}  // namespace trainyard
