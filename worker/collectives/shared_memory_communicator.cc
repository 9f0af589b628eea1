#include "worker/collectives/shared_memory_communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status_macros.h"
#include "worker/collectives/single_communicator.h"
#include "worker/collectives/type_word.h"

namespace trainyard {
namespace {

constexpr absl::Duration kMeetingGrace = absl::Seconds(2);

enum class Kind { kAllReduce, kBroadcast, kAllGather, kReduceScatter, kBarrier };

// One operation, from its start until it was carried out.
struct Operation {
  Kind kind;
  std::string name = {};  // "all-reduce 17 (6553600 x fp32)"
  at::Tensor out = {};    // in-place operations have only this one
  at::Tensor in = {};
  int root = 0;
  bool over = false;
  absl::Status status = {};
};

class SharedMemoryCommunicator;

class SharedMemoryCollective final : public Collective {
 public:
  SharedMemoryCollective(SharedMemoryCommunicator& owner, std::shared_ptr<Operation> operation)
      : owner_(owner), operation_(std::move(operation)) {}
  absl::Status Wait() override;

 private:
  SharedMemoryCommunicator& owner_;
  std::shared_ptr<Operation> operation_;
};

class SharedMemoryCommunicator final : public Communicator {
 public:
  SharedMemoryCommunicator(const SharedSegmentOptions& options, std::unique_ptr<SharedSegment> segment)
      : rank_(options.rank), world_size_(options.world_size), timeout_(options.timeout), segment_(std::move(segment)) {}

  // Peers that still wait for an operation nobody here waited for must not wait for ever.
  ~SharedMemoryCommunicator() override {
    if (!queue_.empty()) segment_->Break();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override {
    return Start({.kind = Kind::kAllReduce, .out = tensor.detach()}, "all-reduce", tensor);
  }
  std::unique_ptr<Collective> Broadcast(const at::Tensor& tensor, int root) override {
    return Start({.kind = Kind::kBroadcast, .out = tensor.detach(), .root = root}, "broadcast", tensor);
  }
  std::unique_ptr<Collective> AllGather(const at::Tensor& out, const at::Tensor& in) override {
    return Start({.kind = Kind::kAllGather, .out = out.detach(), .in = in.detach()}, "all-gather", in);
  }
  std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) override {
    return Start({.kind = Kind::kReduceScatter, .out = out.detach(), .in = in.detach()}, "reduce-scatter", in);
  }
  std::unique_ptr<Collective> Barrier() override { return Start({.kind = Kind::kBarrier}, "barrier", at::Tensor()); }
  absl::Status Meet(absl::Duration limit) override {
    // Rank 0 is the one to say who is missing; the first to give up ends the wait of all.
    segment_->set_timeout(rank_ == 0 ? limit : limit + kMeetingGrace);
    absl::Status status = Barrier()->Wait();
    segment_->set_timeout(timeout_);
    return status;
  }

  void Abort(absl::string_view reason) override { (void)Break(absl::AbortedError(reason)); }

  CollectiveProgress progress() const override {
    absl::MutexLock lock(&mu_);
    return progress_;
  }

  // Carries out what was started up to and including `last`.
  absl::Status CarryOut(const Operation& last) {
    SetWaitsIn(last.name);
    while (!last.over) {
      std::shared_ptr<Operation> next = std::move(queue_.front());
      queue_.pop_front();
      next->status = error();
      if (next->status.ok()) next->status = Run(*next);
      if (!next->status.ok()) next->status = Break(Describe(*next, next->status));
      next->over = true;
      next->out = next->in = at::Tensor();
      absl::MutexLock lock(&mu_);
      if (next->status.ok()) ++progress_.num_completed;
    }
    SetWaitsIn("");
    return last.status;
  }

 private:
  std::unique_ptr<Collective> Start(Operation operation, absl::string_view kind, const at::Tensor& tensor) {
    auto shared = std::make_shared<Operation>(std::move(operation));
    {
      absl::MutexLock lock(&mu_);
      shared->name = absl::StrCat(kind, " ", ++progress_.num_started);
    }
    if (tensor.defined()) {
      absl::StrAppend(&shared->name, " (", tensor.numel(), " x ", TypeWord(tensor.scalar_type()), ")");
    }
    {
      absl::MutexLock lock(&mu_);
      progress_.last_started = shared->name;
    }
    bool dense = (!shared->out.defined() || shared->out.is_contiguous()) &&
                 (!shared->in.defined() || shared->in.is_contiguous());
    if (!dense) {
      shared->over = true;
      shared->status = Break(absl::InvalidArgumentError(absl::StrCat(shared->name, ": the tensor is not dense")));
    } else {
      queue_.push_back(shared);
    }
    return std::make_unique<SharedMemoryCollective>(*this, std::move(shared));
  }

  absl::Status Run(const Operation& operation) {
    c10::NoGradGuard no_grad;
    switch (operation.kind) {
      case Kind::kAllReduce:
        return AllReduce(operation);
      case Kind::kBroadcast:
        return BroadcastPieces(operation);
      case Kind::kAllGather:
        return Gather(operation);
      case Kind::kReduceScatter:
        return ReduceScatter(operation);
      case Kind::kBarrier:
        RETURN_IF_ERROR(Begin());
        return Finish(Arrive(operation));
    }
    return absl::InternalError("no such operation");
  }

  // Each piece goes through these: Begin, put one's part, Arrive, take, Finish. The room of a piece is used again two
  // pieces later, when everyone is done with it.
  absl::Status Begin() {
    ++ticket_;
    return segment_->AwaitAll(SharedSegment::kDone, ticket_ - 2);
  }
  absl::Status Arrive(const Operation& operation) {
    segment_->SetOperation(ticket_, operation.name);
    segment_->Tell(SharedSegment::kArrived, ticket_);
    RETURN_IF_ERROR(segment_->AwaitAll(SharedSegment::kArrived, ticket_));
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank == rank_) continue;
      std::string theirs = segment_->OperationOf(rank, ticket_);
      std::string ours = segment_->OperationOf(rank_, ticket_);
      if (theirs == ours) continue;
      return absl::UnavailableError(absl::StrCat("rank ", rank, " takes part in ", theirs, " at the same time"));
    }
    return absl::OkStatus();
  }
  absl::Status Finish(absl::Status status) {
    RETURN_IF_ERROR(status);
    segment_->Tell(SharedSegment::kDone, ticket_);
    return absl::OkStatus();
  }

  // Calls piece(start, size), in elements; once also for an empty tensor, so that the ranks stay in step.
  template <typename Piece>
  absl::Status ForPieces(int64_t num_elements, size_t bytes_each, Piece piece) {
    int64_t most = std::max<int64_t>(1, static_cast<int64_t>(segment_->piece_bytes() / bytes_each));
    int64_t start = 0;
    do {
      RETURN_IF_ERROR(Begin());
      int64_t size = std::min(most, num_elements - start);
      RETURN_IF_ERROR(Finish(piece(start, size)));
      start += size;
    } while (start < num_elements);
    return absl::OkStatus();
  }

  static std::byte* At(const at::Tensor& tensor, int64_t element) {
    return static_cast<std::byte*>(tensor.data_ptr()) + element * static_cast<int64_t>(tensor.element_size());
  }

  // out[i] = sum over the ranks, in their order, of the `size` elements at byte `offset` of their parts.
  void Sum(std::byte* out, size_t offset, int64_t size, const at::Tensor& like) const {
    if (size == 0) return;
    auto part = [&](int rank) {
      return at::from_blob(segment_->part(rank, ticket_) + offset, {size}, like.options().requires_grad(false));
    };
    at::Tensor sum = at::from_blob(out, {size}, like.options().requires_grad(false));
    at::add_out(sum, part(0), part(1));
    for (int rank = 2; rank < world_size_; ++rank) sum.add_(part(rank));
  }

  absl::Status AllReduce(const Operation& operation) {
    const at::Tensor& tensor = operation.out;
    const size_t width = tensor.element_size();
    return ForPieces(tensor.numel(), width, [&](int64_t start, int64_t size) -> absl::Status {
      const size_t bytes = static_cast<size_t>(size) * width;
      std::memcpy(segment_->part(rank_, ticket_), At(tensor, start), bytes);
      RETURN_IF_ERROR(Arrive(operation));
      const int64_t from = size * rank_ / world_size_, to = size * (rank_ + 1) / world_size_;
      const size_t offset = static_cast<size_t>(from) * width;
      Sum(segment_->result(ticket_) + offset, offset, to - from, tensor);
      segment_->Tell(SharedSegment::kReduced, ticket_);
      RETURN_IF_ERROR(segment_->AwaitAll(SharedSegment::kReduced, ticket_));
      std::memcpy(At(tensor, start), segment_->result(ticket_), bytes);
      return absl::OkStatus();
    });
  }

  absl::Status BroadcastPieces(const Operation& operation) {
    const at::Tensor& tensor = operation.out;
    return ForPieces(tensor.numel(), tensor.element_size(), [&](int64_t start, int64_t size) -> absl::Status {
      const size_t bytes = static_cast<size_t>(size) * tensor.element_size();
      if (rank_ == operation.root) std::memcpy(segment_->result(ticket_), At(tensor, start), bytes);
      RETURN_IF_ERROR(Arrive(operation));
      if (rank_ != operation.root) std::memcpy(At(tensor, start), segment_->result(ticket_), bytes);
      return absl::OkStatus();
    });
  }

  absl::Status Gather(const Operation& operation) {
    const at::Tensor& in = operation.in;
    return ForPieces(in.numel(), in.element_size(), [&](int64_t start, int64_t size) -> absl::Status {
      const size_t bytes = static_cast<size_t>(size) * in.element_size();
      std::memcpy(segment_->part(rank_, ticket_), At(in, start), bytes);
      RETURN_IF_ERROR(Arrive(operation));
      for (int rank = 0; rank < world_size_; ++rank) {
        std::memcpy(At(operation.out, rank * in.numel() + start), segment_->part(rank, ticket_), bytes);
      }
      return absl::OkStatus();
    });
  }

  absl::Status ReduceScatter(const Operation& operation) {
    const at::Tensor& in = operation.in;
    const at::Tensor& out = operation.out;
    const size_t width = in.element_size();
    return ForPieces(out.numel(), width * static_cast<size_t>(world_size_), [&](int64_t start, int64_t size) {
      const size_t bytes = static_cast<size_t>(size) * width;
      for (int rank = 0; rank < world_size_; ++rank) {
        std::memcpy(segment_->part(rank_, ticket_) + static_cast<size_t>(rank) * bytes,
                    At(in, rank * out.numel() + start), bytes);
      }
      absl::Status status = Arrive(operation);
      if (status.ok()) Sum(At(out, start), static_cast<size_t>(rank_) * bytes, size, in);
      return status;
    });
  }

  absl::Status Describe(const Operation& operation, const absl::Status& status) const {
    if (absl::IsAborted(status)) return status;
    return absl::Status(status.code(), absl::StrCat(operation.name, " of rank ", rank_, " of ", world_size_,
                                                    " failed: ", status.message()));
  }

  // The first error stays, and frees the peers. Returns it.
  absl::Status Break(absl::Status status) {
    {
      absl::MutexLock lock(&mu_);
      if (!error_.ok()) return error_;
      error_ = std::move(status);
    }
    segment_->Break();
    return error();
  }
  absl::Status error() const {
    absl::MutexLock lock(&mu_);
    return error_;
  }
  void SetWaitsIn(absl::string_view name) {
    absl::MutexLock lock(&mu_);
    progress_.waits_in = std::string(name);
  }

  const int rank_;
  const int world_size_;
  const absl::Duration timeout_;
  std::unique_ptr<SharedSegment> segment_;
  std::deque<std::shared_ptr<Operation>> queue_;  // started, not carried out; of the one thread
  uint32_t ticket_ = 2;                           // of the newest piece; the first two were the ranks' meeting

  mutable absl::Mutex mu_;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  CollectiveProgress progress_ ABSL_GUARDED_BY(mu_);
};

absl::Status SharedMemoryCollective::Wait() {
  return operation_->over ? operation_->status : owner_.CarryOut(*operation_);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> NewSharedMemoryCommunicator(const SharedSegmentOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " of ", options.world_size, " cannot be"));
  }
  if (options.world_size == 1) return NewSingleCommunicator();
  if (options.store == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("a world of ", options.world_size, " needs a key-value store"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<SharedSegment> segment, SharedSegment::Join(options));
  return std::make_unique<SharedMemoryCommunicator>(options, std::move(segment));
}

}  // namespace trainyard
