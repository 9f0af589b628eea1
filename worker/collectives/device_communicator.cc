#include "worker/collectives/device_communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <atomic>
#include <utility>
#include <vector>

namespace trainyard {
namespace {

// Ends an operation on `staged`, in host memory, by copying that to its place on the device.
class StagedCollective final : public Collective {
 public:
  StagedCollective(std::unique_ptr<Collective> inner, at::Tensor staged, at::Tensor out)
      : inner_(std::move(inner)), staged_(std::move(staged)), out_(std::move(out)) {}

  absl::Status Wait() override {
    const absl::Status status = inner_->Wait();
    if (!status.ok() || !staged_.defined()) return status;
    c10::NoGradGuard no_grad;
    out_.copy_(staged_);
    staged_ = out_ = at::Tensor();
    return status;
  }

 private:
  std::unique_ptr<Collective> inner_;
  at::Tensor staged_, out_;  // undefined once it is over
};

class DeviceCommunicator final : public Communicator {
 public:
  DeviceCommunicator(at::Device device, std::unique_ptr<Communicator> host, std::unique_ptr<Communicator> on_device)
      : device_(device), host_(std::move(host)), on_device_(std::move(on_device)) {}

  int rank() const override { return host_->rank(); }
  int world_size() const override { return host_->world_size(); }

  std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override {
    if (!IsStaged(tensor)) return Way(tensor).AllReduceSum(tensor);
    at::Tensor staged = Stage(tensor);
    return Staged(host_->AllReduceSum(staged), staged, tensor);
  }
  std::unique_ptr<Collective> Broadcast(const at::Tensor& tensor, int root) override {
    if (!IsStaged(tensor)) return Way(tensor).Broadcast(tensor, root);
    at::Tensor staged = Stage(tensor);
    return Staged(host_->Broadcast(staged, root), staged, tensor);
  }
  std::unique_ptr<Collective> AllGather(const at::Tensor& out, const at::Tensor& in) override {
    if (!IsStaged(in)) return Way(in).AllGather(out, in);
    at::Tensor staged = HostMemory(out);
    return Staged(host_->AllGather(staged, Stage(in)), staged, out);
  }
  std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) override {
    if (!IsStaged(in)) return Way(in).ReduceScatterSum(out, in);
    at::Tensor staged = HostMemory(out);
    return Staged(host_->ReduceScatterSum(staged, Stage(in)), staged, out);
  }
  std::unique_ptr<Collective> Barrier() override {
    last_on_device_ = false;
    return host_->Barrier();
  }
  absl::Status Meet(absl::Duration limit) override {
    last_on_device_ = false;
    return host_->Meet(limit);
  }

  void Abort(absl::string_view reason) override {
    if (on_device_ != nullptr) on_device_->Abort(reason);
    host_->Abort(reason);
  }

  at::Tensor NewBuffer(int64_t numel, at::ScalarType type) override {
    return at::empty({numel}, at::TensorOptions().dtype(type).device(device_));
  }

  void Progress() override { host_->Progress(); }

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

  Communicator& Way(const at::Tensor& tensor) {
    last_on_device_ = on_device_ != nullptr && tensor.device() == device_;
    return last_on_device_ ? *on_device_ : *host_;
  }

  static std::unique_ptr<Collective> Staged(std::unique_ptr<Collective> inner, at::Tensor staged,
                                            const at::Tensor& out) {
    return std::make_unique<StagedCollective>(std::move(inner), std::move(staged), out.detach());
  }

  at::Tensor Stage(const at::Tensor& tensor) {
    c10::NoGradGuard no_grad;
    at::Tensor staged = HostMemory(tensor);
    staged.copy_(tensor.detach());
    return staged;
  }

  // As long as `like`, of memory that no operation uses any more: a step like the one before allocates nothing. Of the
  // one thread.
  at::Tensor HostMemory(const at::Tensor& like) {
    const int64_t bytes = static_cast<int64_t>(like.nbytes());
    const auto view = [&](const at::Tensor& memory) {
      return memory.narrow(0, 0, bytes).view(like.scalar_type()).view(like.sizes());
    };
    for (at::Tensor& kept : scratch_) {
      if (kept.storage().use_count() > 1) continue;
      if (kept.numel() < bytes) kept = NewHostMemory(bytes);
      return view(kept);
    }
    return view(scratch_.emplace_back(NewHostMemory(bytes)));
  }
  // Pinned, which is what a GPU copies fastest from.
  at::Tensor NewHostMemory(int64_t bytes) const {
    return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(device_.is_cuda()));
  }

  const at::Device device_;
  const std::unique_ptr<Communicator> host_, on_device_;
  std::vector<at::Tensor> scratch_;
  std::atomic<bool> last_on_device_ = false;  // where the newest operation went
};

}  // namespace

std::unique_ptr<Communicator> NewDeviceCommunicator(at::Device device, std::unique_ptr<Communicator> host,
                                                    std::unique_ptr<Communicator> on_device) {
  return std::make_unique<DeviceCommunicator>(device, std::move(host), std::move(on_device));
}

}  // namespace trainyard
