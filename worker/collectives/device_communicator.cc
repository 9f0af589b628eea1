#include "worker/collectives/device_communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <atomic>
#include <utility>

#include "worker/collectives/scratch.h"

namespace trainyard {
namespace {

// An operation in host memory whose result is copied to `out`, on the device, when it is waited for. `in` is null for
// an in-place operation.
class StagedCollective final : public Collective {
 public:
  StagedCollective(std::unique_ptr<Collective> inner, std::shared_ptr<Scratch> in, std::shared_ptr<Scratch> result,
                   at::Tensor out)
      : inner_(std::move(inner)), in_(std::move(in)), result_(std::move(result)), out_(std::move(out)) {}

  absl::Status Wait() override {
    const absl::Status status = inner_->Wait();
    if (!status.ok() || result_ == nullptr) return status;
    c10::NoGradGuard no_grad;
    out_.copy_(result_->ViewLike(out_));
    for (std::shared_ptr<Scratch>* scratch : {&in_, &result_}) {
      if (*scratch != nullptr) (*scratch)->is_over = true;
      scratch->reset();
    }
    out_ = at::Tensor();
    return status;
  }

 private:
  std::unique_ptr<Collective> inner_;
  std::shared_ptr<Scratch> in_, result_;  // null after the operation
  at::Tensor out_;
};

class DeviceCommunicator final : public Communicator {
 public:
  DeviceCommunicator(at::Device device, std::unique_ptr<Communicator> host, std::unique_ptr<Communicator> on_device)
      : device_(device),
        host_(std::move(host)),
        on_device_(std::move(on_device)),
        scratch_(/*pinned=*/device.is_cuda()) {}

  int rank() const override { return host_->rank(); }
  int world_size() const override { return host_->world_size(); }

  std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override {
    if (!IsStaged(tensor)) return CommunicatorFor(tensor).AllReduceSum(tensor);
    std::shared_ptr<Scratch> staged = Stage(tensor);
    return Staged(host_->AllReduceSum(staged->ViewLike(tensor)), nullptr, staged, tensor);
  }
  std::unique_ptr<Collective> Broadcast(const at::Tensor& tensor, int root) override {
    if (!IsStaged(tensor)) return CommunicatorFor(tensor).Broadcast(tensor, root);
    std::shared_ptr<Scratch> staged = Stage(tensor);
    return Staged(host_->Broadcast(staged->ViewLike(tensor), root), nullptr, staged, tensor);
  }
  std::unique_ptr<Collective> AllGather(const at::Tensor& out, const at::Tensor& in) override {
    if (!IsStaged(in)) return CommunicatorFor(in).AllGather(out, in);
    std::shared_ptr<Scratch> from = Stage(in), to = scratch_.Acquire(static_cast<int64_t>(out.nbytes()));
    return Staged(host_->AllGather(to->ViewLike(out), from->ViewLike(in)), from, to, out);
  }
  std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) override {
    if (!IsStaged(in)) return CommunicatorFor(in).ReduceScatterSum(out, in);
    std::shared_ptr<Scratch> from = Stage(in), to = scratch_.Acquire(static_cast<int64_t>(out.nbytes()));
    return Staged(host_->ReduceScatterSum(to->ViewLike(out), from->ViewLike(in)), from, to, out);
  }
  std::unique_ptr<Collective> Barrier() override {
    last_on_device_ = false;
    return host_->Barrier();
  }
  absl::Status MonitoredBarrier(absl::Duration limit) override {
    last_on_device_ = false;
    return host_->MonitoredBarrier(limit);
  }

  void Abort(absl::string_view reason) override {
    if (on_device_ != nullptr) on_device_->Abort(reason);
    host_->Abort(reason);
  }

  at::Tensor NewBuffer(int64_t numel, at::ScalarType type) override {
    return at::empty({numel}, at::TensorOptions().dtype(type).device(device_));
  }

  void AdvanceOperations() override { host_->AdvanceOperations(); }

  CollectiveProgress progress() const override {
    CollectiveProgress host = host_->progress();
    if (on_device_ == nullptr) return host;
    CollectiveProgress device = on_device_->progress();
    return {.num_started = host.num_started + device.num_started,
            .num_completed = host.num_completed + device.num_completed,
            .waits_in = host.waits_in.empty() ? device.waits_in : host.waits_in,
            .last_started = last_on_device_ ? device.last_started : host.last_started};
  }

 private:
  bool IsStaged(const at::Tensor& tensor) const { return on_device_ == nullptr && tensor.device() == device_; }

  Communicator& CommunicatorFor(const at::Tensor& tensor) {
    last_on_device_ = on_device_ != nullptr && tensor.device() == device_;
    return last_on_device_ ? *on_device_ : *host_;
  }

  static std::unique_ptr<Collective> Staged(std::unique_ptr<Collective> inner, std::shared_ptr<Scratch> in,
                                            std::shared_ptr<Scratch> result, const at::Tensor& out) {
    return std::make_unique<StagedCollective>(std::move(inner), std::move(in), std::move(result), out.detach());
  }

  std::shared_ptr<Scratch> Stage(const at::Tensor& tensor) {
    c10::NoGradGuard no_grad;
    std::shared_ptr<Scratch> staged = scratch_.Acquire(static_cast<int64_t>(tensor.nbytes()));
    staged->ViewLike(tensor).copy_(tensor.detach());
    return staged;
  }

  const at::Device device_;
  const std::unique_ptr<Communicator> host_, on_device_;
  ScratchPool scratch_;
  std::atomic<bool> last_on_device_ = false;  // the path of the newest operation
};

}  // namespace

std::unique_ptr<Communicator> NewDeviceCommunicator(at::Device device, std::unique_ptr<Communicator> host,
                                                    std::unique_ptr<Communicator> on_device) {
  return std::make_unique<DeviceCommunicator>(device, std::move(host), std::move(on_device));
}

}  // namespace trainyard
