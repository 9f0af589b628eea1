// The tensor group of a rank (worker/model/tensor_group.h) on a communicator of its members. Errors of the communicator
// are thrown as UnitError (autograd_hooks.h).
//
// Belongs to the thread that runs the model.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/collectives/communicator.h"
#include "worker/model/tensor_group.h"

namespace trainyard {

class CommunicatorTensorGroup final : public TensorGroup {
 public:
  // Both must outlive this object.
  CommunicatorTensorGroup(Communicator& communicator, Clock& clock) : communicator_(communicator), clock_(clock) {}

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.world_size(); }
  void StartSum(const at::Tensor& tensor) override;
  void StartAllGather(const at::Tensor& out, const at::Tensor& in) override;
  void StartReduceScatter(const at::Tensor& out, const at::Tensor& in) override;
  void Wait() override;

  // Seconds that the thread has spent in Wait since the group was made, including the exchange of the data.
  double waited_s() const { return waited_s_; }

 private:
  Communicator& communicator_;
  Clock& clock_;
  std::vector<std::unique_ptr<Collective>> operations_;  // started, and not yet waited for
  double waited_s_ = 0;
};

}  // namespace trainyard
