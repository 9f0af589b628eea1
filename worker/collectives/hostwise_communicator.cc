#include "worker/collectives/hostwise_communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <deque>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/collectives/operation_log.h"
#include "worker/collectives/place_chain.h"
#include "worker/collectives/scratch.h"

namespace trainyard {
namespace {

struct HostwiseOperation {
  std::string name = {};
  std::function<absl::Status()> run = {};  // empty after the operation
  absl::Status status = {};
};

// A place is a set of ranks that share memory, usually one host. Messages call it a host.
class HostwiseCommunicator final : public Communicator {
 public:
  HostwiseCommunicator(std::unique_ptr<PlaceCommunicator> inside, std::unique_ptr<PeerCommunicator> across,
                       size_t piece_bytes)
      : inside_(std::move(inside)), across_(std::move(across)), chain_(*across_, piece_bytes) {}

  // Peers may still wait for operations that this rank started but never waited for; they must not wait forever.
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
      const int local_size = inside_->world_size();
      if (inside_->rank() == root % local_size) {
        RETURN_IF_ERROR(across_->Broadcast(t, root / local_size)->Wait());
      }
      return inside_->Broadcast(t, root % local_size)->Wait();
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

  // The ranks of a place wait for each other first: a missing rank is named to the others of its place, and the other
  // places then report its place as missing.
  absl::Status MonitoredBarrier(absl::Duration limit) override {
    std::shared_ptr<HostwiseOperation> operation =
        Enqueue("monitored-barrier", at::Tensor(), [this, limit]() -> absl::Status {
          RETURN_IF_ERROR(inside_->MonitoredBarrier(limit)) << "among the ranks of one host";
          RETURN_IF_ERROR(across_->MonitoredBarrier(limit))
              << "among the " << across_->world_size()
              << " hosts of the group, which are numbered from 0 here and have " << inside_->world_size()
              << " ranks each";
          return inside_->Barrier()->Wait();
        });
    return CarryOut(*operation);
  }

  void Abort(absl::string_view reason) override { (void)Break(absl::AbortedError(reason)); }

  CollectiveProgress progress() const override { return log_.progress(); }

  // Runs the started operations up to and including `last`.
  absl::Status CarryOut(const HostwiseOperation& last) {
    if (last.run == nullptr) return last.status;
    c10::NoGradGuard no_grad;
    log_.WaitBegins(last.name);
    while (last.run != nullptr) {
      std::shared_ptr<HostwiseOperation> next = std::move(queue_.front());
      queue_.pop_front();
      next->status = log_.error();
      if (next->status.ok()) next->status = next->run();
      next->run = nullptr;
      if (!next->status.ok()) {
        next->status = Break(AnnotateFailure(next->name, *this, next->status));
        continue;
      }
      log_.Complete();
    }
    log_.WaitEnds();
    return last.status;
  }

 private:
  std::shared_ptr<HostwiseOperation> Enqueue(absl::string_view kind, const at::Tensor& tensor,
                                             std::function<absl::Status()> run) {
    auto operation =
        std::make_shared<HostwiseOperation>(HostwiseOperation{.name = log_.Start(kind, tensor), .run = std::move(run)});
    queue_.push_back(operation);
    return operation;
  }
  std::unique_ptr<Collective> Start(absl::string_view kind, const at::Tensor& tensor,
                                    std::function<absl::Status()> run) {
    return std::make_unique<DeferredCollective<HostwiseCommunicator, HostwiseOperation>>(
        *this, Enqueue(kind, tensor, std::move(run)));
  }

  // Each rank of a place sends its share of the sum through the network.
  absl::Status AllReduce(const at::Tensor& tensor) {
    const int64_t local_size = inside_->world_size(), size = tensor.numel(),
                  share = (size + local_size - 1) / local_size;
    at::Tensor whole = tensor.view(-1);
    if (size != share * local_size) {
      whole = at::zeros({share * local_size}, tensor.options());
      whole.narrow(0, 0, size).copy_(tensor.view(-1));
    }
    std::shared_ptr<Scratch> scratch = scratch_.Acquire(static_cast<int64_t>(whole.nbytes()));
    const at::Tensor contributions = scratch->ViewLike(whole),
                     own_share = whole.narrow(0, inside_->rank() * share, share);
    RETURN_IF_ERROR(inside_->AllToAll(contributions, whole)->Wait());
    RETURN_IF_ERROR(chain_.AllReduceSum(own_share, contributions));
    RETURN_IF_ERROR(inside_->AllGather(whole, own_share)->Wait());
    scratch->is_over = true;
    if (size != share * local_size) tensor.view(-1).copy_(whole.narrow(0, 0, size));
    return absl::OkStatus();
  }

  // Gathers in the order [local][place], and transposes into the order [place][local] of `out`.
  absl::Status Gather(const at::Tensor& out, const at::Tensor& in) {
    const int64_t local_size = inside_->world_size(), places = across_->world_size();
    at::Tensor across = at::empty({places * in.numel()}, in.options());
    at::Tensor all = at::empty({local_size * across.numel()}, in.options());
    RETURN_IF_ERROR(across_->AllGather(across, in)->Wait());
    RETURN_IF_ERROR(inside_->AllGather(all, across)->Wait());
    out.view({places, local_size, in.numel()}).copy_(all.view({local_size, places, in.numel()}).transpose(0, 1));
    return absl::OkStatus();
  }

  absl::Status ReduceScatter(const at::Tensor& out, const at::Tensor& in) {
    const int64_t local_size = inside_->world_size(), places = across_->world_size();
    at::Tensor by_local = in.view({places, local_size, out.numel()}).transpose(0, 1).contiguous().view(-1);
    std::shared_ptr<Scratch> scratch = scratch_.Acquire(static_cast<int64_t>(by_local.nbytes()));
    const at::Tensor contributions = scratch->ViewLike(by_local);
    RETURN_IF_ERROR(inside_->AllToAll(contributions, by_local)->Wait());
    RETURN_IF_ERROR(chain_.ReduceScatterSum(out, contributions));
    scratch->is_over = true;
    return absl::OkStatus();
  }

  // The first error is permanent. It breaks both groups, also on the peers inside this place and in other places.
  absl::Status Break(absl::Status status) {
    if (log_.Fail(std::move(status))) BreakBoth(log_.error().message());
    return log_.error();
  }
  void BreakBoth(absl::string_view reason) {
    inside_->Abort(reason);
    across_->Abort(reason);
  }

  const std::unique_ptr<PlaceCommunicator> inside_;
  const std::unique_ptr<PeerCommunicator> across_;
  PlaceChain chain_;
  ScratchPool scratch_;
  std::deque<std::shared_ptr<HostwiseOperation>> queue_;  // started, but not yet run; used by one thread
  OperationLog log_;
};

}  // namespace

std::unique_ptr<Communicator> NewHostwiseCommunicator(std::unique_ptr<PlaceCommunicator> inside,
                                                      std::unique_ptr<PeerCommunicator> across, size_t piece_bytes) {
  return std::make_unique<HostwiseCommunicator>(std::move(inside), std::move(across), piece_bytes);
}

}  // namespace trainyard
