#include "worker/collectives/hostwise_communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <deque>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status_macros.h"
#include "worker/collectives/type_word.h"

namespace trainyard {
namespace {

struct Operation {
  std::string name = {};
  std::function<absl::Status()> run = {};  // empty once it is over
  absl::Status status = {};
};

class HostwiseCommunicator;

class HostwiseCollective final : public Collective {
 public:
  HostwiseCollective(HostwiseCommunicator& owner, std::shared_ptr<Operation> operation)
      : owner_(owner), operation_(std::move(operation)) {}
  absl::Status Wait() override;

 private:
  HostwiseCommunicator& owner_;
  std::shared_ptr<Operation> operation_;
};

class HostwiseCommunicator final : public Communicator {
 public:
  HostwiseCommunicator(std::unique_ptr<Communicator> inside, std::unique_ptr<Communicator> across)
      : inside_(std::move(inside)), across_(std::move(across)) {}

  // Peers that still wait for an operation nobody here waited for must not wait for ever.
  ~HostwiseCommunicator() override {
    if (!queue_.empty()) BreakBoth("a rank has left the group");
  }

  int rank() const override { return across_->rank() * inside_->world_size() + inside_->rank(); }
  int world_size() const override { return across_->world_size() * inside_->world_size(); }

  std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override {
    return Start("all-reduce", tensor, [this, t = tensor.detach()] { return AllReduce(t); });
  }
  std::unique_ptr<Collective> Broadcast(const at::Tensor& tensor, int root) override {
    return Start("broadcast", tensor, [this, t = tensor.detach(), root]() -> absl::Status {
      const int locals = inside_->world_size();
      if (inside_->rank() == root % locals) {
        RETURN_IF_ERROR(across_->Broadcast(t, root / locals)->Wait());
      }
      return inside_->Broadcast(t, root % locals)->Wait();
    });
  }
  std::unique_ptr<Collective> AllGather(const at::Tensor& out, const at::Tensor& in) override {
    return Start("all-gather", in, [this, to = out.detach(), from = in.detach()] { return Gather(to, from); });
  }
  std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) override {
    return Start("reduce-scatter", in,
                 [this, to = out.detach(), from = in.detach()] { return ReduceScatter(to, from); });
  }
  std::unique_ptr<Collective> Barrier() override {
    return Start("barrier", at::Tensor(), [this]() -> absl::Status {
      RETURN_IF_ERROR(inside_->Barrier()->Wait());
      RETURN_IF_ERROR(across_->Barrier()->Wait());
      return inside_->Barrier()->Wait();
    });
  }

  // The ranks of a place first: one that is missing is named to its neighbours, whose place is then missing elsewhere.
  absl::Status Meet(absl::Duration limit) override {
    std::shared_ptr<Operation> operation = Enqueue("meeting", at::Tensor(), [this, limit]() -> absl::Status {
      RETURN_IF_ERROR(inside_->Meet(limit)) << "among the " << inside_->world_size() << " ranks of the place of rank "
                                            << rank() << ", counted from its first";
      RETURN_IF_ERROR(across_->Meet(limit)) << "among the " << across_->world_size() << " places of the group, each of "
                                            << inside_->world_size() << " ranks and counted from the first";
      return inside_->Barrier()->Wait();
    });
    return CarryOut(*operation);
  }

  void Abort(absl::string_view reason) override { (void)Break(absl::AbortedError(reason)); }

  CollectiveProgress progress() const override {
    absl::MutexLock lock(&mu_);
    return progress_;
  }

  // Carries out what was started up to and including `last`.
  absl::Status CarryOut(const Operation& last) {
    c10::NoGradGuard no_grad;
    SetWaitsIn(last.name);
    while (last.run != nullptr) {
      std::shared_ptr<Operation> next = std::move(queue_.front());
      queue_.pop_front();
      next->status = error();
      if (next->status.ok()) next->status = next->run();
      next->run = nullptr;
      if (!next->status.ok()) {
        next->status = Break(Describe(*next, next->status));
        continue;
      }
      absl::MutexLock lock(&mu_);
      ++progress_.num_completed;
    }
    SetWaitsIn("");
    return last.status;
  }

 private:
  std::shared_ptr<Operation> Enqueue(absl::string_view kind, const at::Tensor& tensor,
                                     std::function<absl::Status()> run) {
    auto operation = std::make_shared<Operation>(Operation{.run = std::move(run)});
    absl::MutexLock lock(&mu_);
    operation->name = absl::StrCat(kind, " ", ++progress_.num_started);
    if (tensor.defined()) {
      absl::StrAppend(&operation->name, " (", tensor.numel(), " x ", TypeWord(tensor.scalar_type()), ")");
    }
    progress_.last_started = operation->name;
    queue_.push_back(operation);
    return operation;
  }
  std::unique_ptr<Collective> Start(absl::string_view kind, const at::Tensor& tensor,
                                    std::function<absl::Status()> run) {
    return std::make_unique<HostwiseCollective>(*this, Enqueue(kind, tensor, std::move(run)));
  }

  // Each rank of a place has a share of the sum to take through the network.
  absl::Status AllReduce(const at::Tensor& tensor) {
    const int64_t locals = inside_->world_size(), size = tensor.numel(), share = (size + locals - 1) / locals;
    at::Tensor whole = tensor.view(-1);
    if (size != share * locals) {
      whole = at::zeros({share * locals}, tensor.options());
      whole.narrow(0, 0, size).copy_(tensor.view(-1));
    }
    at::Tensor mine = whole.narrow(0, inside_->rank() * share, share);
    RETURN_IF_ERROR(inside_->ReduceScatterSum(mine, whole)->Wait());
    RETURN_IF_ERROR(across_->AllReduceSum(mine)->Wait());
    RETURN_IF_ERROR(inside_->AllGather(whole, mine)->Wait());
    if (size != share * locals) tensor.view(-1).copy_(whole.narrow(0, 0, size));
    return absl::OkStatus();
  }

  // By way of [local][place], which is the other way round than `out`.
  absl::Status Gather(const at::Tensor& out, const at::Tensor& in) {
    const int64_t locals = inside_->world_size(), places = across_->world_size();
    at::Tensor across = at::empty({places * in.numel()}, in.options());
    at::Tensor all = at::empty({locals * across.numel()}, in.options());
    RETURN_IF_ERROR(across_->AllGather(across, in)->Wait());
    RETURN_IF_ERROR(inside_->AllGather(all, across)->Wait());
    out.view({places, locals, in.numel()}).copy_(all.view({locals, places, in.numel()}).transpose(0, 1));
    return absl::OkStatus();
  }

  absl::Status ReduceScatter(const at::Tensor& out, const at::Tensor& in) {
    const int64_t locals = inside_->world_size(), places = across_->world_size();
    at::Tensor by_local = in.view({places, locals, out.numel()}).transpose(0, 1).contiguous().view(-1);
    at::Tensor mine = by_local.narrow(0, inside_->rank() * places * out.numel(), places * out.numel());
    RETURN_IF_ERROR(inside_->ReduceScatterSum(mine, by_local)->Wait());
    return across_->ReduceScatterSum(out, mine)->Wait();
  }

  absl::Status Describe(const Operation& operation, const absl::Status& status) const {
    if (absl::IsAborted(status)) return status;
    return absl::Status(status.code(), absl::StrCat(operation.name, " of rank ", rank(), " of ", world_size(),
                                                    " failed: ", status.message()));
  }

  // The first error stays. Both groups break, and with them the peers inside and those elsewhere.
  absl::Status Break(absl::Status status) {
    {
      absl::MutexLock lock(&mu_);
      if (!error_.ok()) return error_;
      error_ = std::move(status);
    }
    BreakBoth(error().message());
    return error();
  }
  void BreakBoth(absl::string_view reason) {
    inside_->Abort(reason);
    across_->Abort(reason);
  }
  absl::Status error() const {
    absl::MutexLock lock(&mu_);
    return error_;
  }
  void SetWaitsIn(absl::string_view name) {
    absl::MutexLock lock(&mu_);
    progress_.waits_in = std::string(name);
  }

  const std::unique_ptr<Communicator> inside_, across_;
  std::deque<std::shared_ptr<Operation>> queue_;  // started, not carried out; of the one thread

  mutable absl::Mutex mu_;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  CollectiveProgress progress_ ABSL_GUARDED_BY(mu_);
};

absl::Status HostwiseCollective::Wait() {
  return operation_->run == nullptr ? operation_->status : owner_.CarryOut(*operation_);
}

}  // namespace

std::unique_ptr<Communicator> NewHostwiseCommunicator(std::unique_ptr<Communicator> inside,
                                                      std::unique_ptr<Communicator> across) {
  return std::make_unique<HostwiseCommunicator>(std::move(inside), std::move(across));
}

}  // namespace trainyard
