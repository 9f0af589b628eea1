#include "worker/collectives/shared_memory_communicator.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/collectives/operation_history.h"
#include "worker/collectives/operation_log.h"
#include "worker/collectives/rank_sum.h"
#include "worker/collectives/single_communicator.h"
#include "worker/collectives/type_name.h"

namespace trainyard {
namespace {

constexpr absl::Duration kBarrierGrace = absl::Seconds(2);

enum class Kind { kAllReduce, kBroadcast, kAllGather, kReduceScatter, kAllToAll, kBarrier };

// One operation, from its start until it has run. It runs piece by piece: each rank writes a piece where the peers can
// read it, and reads the pieces of the peers. In an all-reduce each rank sums a share, and all ranks then collect the
// shares. Input in a buffer that the peers read in place may be changed only after they have read it.
struct SharedMemoryOperation {
  enum Phase { kPublishInput, kReadInputs, kCollectSums, kAwaitReaders };

  Kind kind;
  std::string name = {};  // "all-reduce 17 (6553600 x fp32)"
  at::Tensor out = {};    // in-place operations have only `out`
  at::Tensor in = {};
  int root = 0;
  // The elements to process in pieces; for an all-gather, a reduce-scatter and an all-to-all, those of one rank.
  int64_t num_elements = 0;
  size_t element_bytes = 1;
  int64_t start = 0;              // the first element of the current piece
  Phase phase = kPublishInput;    // the next phase to run
  bool is_read_in_place = false;  // the peers read this rank's input where it is: in a buffer of NewBuffer

  // The input of an all-reduce is its output tensor.
  const at::Tensor& input() const { return kind == Kind::kAllReduce ? out : in; }
  bool is_over = false;
  absl::Status status = {};
};

class SharedMemoryCommunicator final : public PlaceCommunicator {
 public:
  SharedMemoryCommunicator(const SharedSegmentOptions& options, std::unique_ptr<SharedSegment> segment)
      : rank_(options.rank), world_size_(options.world_size), timeout_(options.timeout), segment_(std::move(segment)) {}

  // Peers may still wait for operations that this rank started but never waited for; they must not wait forever.
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
  std::unique_ptr<Collective> AllToAll(const at::Tensor& out, const at::Tensor& in) override {
    return Start({.kind = Kind::kAllToAll, .out = out.detach(), .in = in.detach()}, "all-to-all", in);
  }
  std::unique_ptr<Collective> Barrier() override { return Start({.kind = Kind::kBarrier}, "barrier", at::Tensor()); }
  absl::Status MonitoredBarrier(absl::Duration limit) override {
    // Rank 0 gives up first, because it reports the missing ranks: the first rank that gives up ends the wait of all.
    segment_->set_timeout(rank_ == 0 ? limit : limit + kBarrierGrace);
    absl::Status status = Barrier()->Wait();
    segment_->set_timeout(timeout_);
    return status;
  }

  void Abort(absl::string_view reason) override { (void)Break(absl::AbortedError(reason)); }

  CollectiveProgress progress() const override { return log_.progress(); }

  at::Tensor NewBuffer(int64_t numel, at::ScalarType type) override {
    std::shared_ptr<SharedBuffer> buffer = segment_->NewBuffer(static_cast<size_t>(numel) * c10::elementSize(type));
    if (buffer == nullptr) return Communicator::NewBuffer(numel, type);
    return at::from_blob(
        buffer->data(), {numel}, [buffer](void*) {}, at::TensorOptions().dtype(type));
  }

  void AdvanceOperations() override {
    while (!queue_.empty() && Advance(/*wait=*/false)) {
    }
  }

  // Runs the started operations up to and including `last`.
  absl::Status CarryOut(const SharedMemoryOperation& last) {
    if (last.is_over) return last.status;
    log_.WaitBegins(last.name);
    while (!last.is_over) Advance(/*wait=*/true);
    log_.WaitEnds();
    return last.status;
  }

 private:
  using Handle = DeferredCollective<SharedMemoryCommunicator, SharedMemoryOperation>;

  std::unique_ptr<Collective> Start(SharedMemoryOperation operation, absl::string_view kind, const at::Tensor& tensor) {
    auto shared = std::make_shared<SharedMemoryOperation>(std::move(operation));
    shared->name = log_.Start(kind, tensor);
    if (absl::Status status = Check(*shared); !status.ok()) {
      shared->is_over = true;
      shared->status =
          Break(absl::InvalidArgumentError(absl::StrCat(shared->name, " is not valid: ", status.message())));
      return std::make_unique<Handle>(*this, std::move(shared));
    }
    if (shared->out.defined()) {
      shared->element_bytes = shared->out.element_size();
      shared->num_elements = shared->kind == Kind::kAllGather ? shared->in.numel() : shared->out.numel();
      if (shared->kind == Kind::kAllToAll) shared->num_elements /= world_size_;
    }
    queue_.push_back(shared);
    return std::make_unique<Handle>(*this, std::move(shared));
  }

  absl::Status Check(const SharedMemoryOperation& operation) const {
    const at::Tensor &out = operation.out, &in = operation.in;
    if ((out.defined() && !out.is_contiguous()) || (in.defined() && !in.is_contiguous())) {
      return absl::InvalidArgumentError("the tensor is not dense");
    }
    const bool sums = operation.kind == Kind::kAllReduce || operation.kind == Kind::kReduceScatter;
    if (sums && !SumInRankOrder(out.scalar_type(), nullptr, 0, nullptr, 0)) {
      return absl::InvalidArgumentError(absl::StrCat(TypeName(out.scalar_type()), " cannot be summed"));
    }
    if (!in.defined()) return absl::OkStatus();
    if (operation.kind == Kind::kAllToAll) {
      const bool fit = in.scalar_type() == out.scalar_type() && in.numel() == out.numel();
      if (fit && in.numel() % world_size_ == 0) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat(
          "the input (", in.numel(), " x ", TypeName(in.scalar_type()), ") and the output (", out.numel(), " x ",
          TypeName(out.scalar_type()), ") must have the same type and size, a multiple of ", world_size_));
    }
    const bool gathers = operation.kind == Kind::kAllGather;
    const at::Tensor &whole = gathers ? out : in, &part = gathers ? in : out;
    if (in.scalar_type() == out.scalar_type() && whole.numel() == part.numel() * world_size_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(world_size_, " ranks with a part of ", part.numel(), " x ",
                                                   TypeName(part.scalar_type()), " each do not make a whole of ",
                                                   whole.numel(), " x ", TypeName(whole.scalar_type())));
  }

  // Advances the front operation by one step. If the step needs a peer that has not progressed far enough, waits for it
  // or, without `wait`, does nothing and returns false.
  bool Advance(bool wait) {
    SharedMemoryOperation& operation = *queue_.front();
    absl::Status status = log_.error();
    if (status.ok()) {
      const auto [stage, ticket] = NextRequirement(operation);
      if (!wait && !segment_->HaveAll(stage, ticket)) return false;
      status = segment_->AwaitAll(stage, ticket);
    }
    if (status.ok()) status = Run(operation);
    if (status.ok() && !operation.is_over) return true;
    if (!status.ok()) operation.status = Break(Annotate(operation.name, status));
    if (status.ok()) history_.Add(operation.name);
    operation.is_over = true;
    operation.out = operation.in = at::Tensor();
    queue_.pop_front();
    if (status.ok()) log_.Complete();
    return true;
  }

  // The stage that all ranks must have signalled before the operation's next step. The space of a piece is reused two
  // pieces later, when all ranks are done with it.
  std::pair<SharedSegment::Stage, uint32_t> NextRequirement(const SharedMemoryOperation& operation) const {
    switch (operation.phase) {
      case SharedMemoryOperation::kPublishInput:
        return {SharedSegment::kDone, ticket_ - 1};  // the new piece will be ticket_ + 1
      case SharedMemoryOperation::kReadInputs:
        return {SharedSegment::kArrived, ticket_};
      case SharedMemoryOperation::kCollectSums:
        return {SharedSegment::kReduced, ticket_};
      case SharedMemoryOperation::kAwaitReaders:
        return {SharedSegment::kDone, ticket_};
    }
    return {SharedSegment::kDone, ticket_};
  }

  absl::Status Run(SharedMemoryOperation& operation) {
    const int64_t size = std::min(PieceElements(operation), operation.num_elements - operation.start);
    const size_t bytes = static_cast<size_t>(size) * operation.element_bytes;
    switch (operation.phase) {
      case SharedMemoryOperation::kPublishInput:
        ++ticket_;
        PublishInput(operation, bytes);
        segment_->SetOperation(ticket_, operation.name);
        segment_->Signal(SharedSegment::kArrived, ticket_);
        operation.phase = SharedMemoryOperation::kReadInputs;
        return absl::OkStatus();
      case SharedMemoryOperation::kReadInputs:
        RETURN_IF_ERROR(CompareWithPeers());
        RETURN_IF_ERROR(ReadInputs(operation, size));
        if (operation.kind == Kind::kAllReduce) {
          segment_->Signal(SharedSegment::kReduced, ticket_);
          operation.phase = SharedMemoryOperation::kCollectSums;
          return absl::OkStatus();
        }
        break;
      case SharedMemoryOperation::kCollectSums:
        RETURN_IF_ERROR(CollectSums(operation, size));
        break;
      case SharedMemoryOperation::kAwaitReaders:
        operation.is_over = true;
        return absl::OkStatus();
    }
    segment_->Signal(SharedSegment::kDone, ticket_);
    operation.phase = SharedMemoryOperation::kPublishInput;
    operation.start += size;
    if (operation.start < operation.num_elements) return absl::OkStatus();  // an empty tensor takes one piece too
    operation.is_over = !operation.is_read_in_place;
    if (operation.is_read_in_place) operation.phase = SharedMemoryOperation::kAwaitReaders;
    return absl::OkStatus();
  }

  // Adds "all-reduce 17 of rank 6 in a group of 2 failed: " to the message, or "all-reduce 17 of rank 0 of 2 failed: "
  // if every rank of the group has the same number in the world.
  absl::Status Annotate(absl::string_view name, const absl::Status& status) const {
    bool renumbered = false;
    for (int rank = 0; rank < world_size_; ++rank) renumbered = renumbered || segment_->NameOf(rank) != rank;
    if (!renumbered || absl::IsAborted(status)) return AnnotateFailure(name, *this, status);
    return absl::Status(status.code(), absl::StrCat(name, " of rank ", segment_->NameOf(rank_), " in a group of ",
                                                    world_size_, " failed: ", status.message()));
  }

  absl::Status CompareWithPeers() {
    const std::string own = segment_->OperationOf(rank_, ticket_);
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank == rank_) continue;
      std::string theirs = segment_->OperationOf(rank, ticket_);
      if (theirs == own) continue;
      return absl::UnavailableError(absl::StrCat("rank ", segment_->NameOf(rank), " takes part in ", theirs,
                                                 " at the same time", DescribeFault(own, rank, theirs)));
    }
    return absl::OkStatus();
  }

  // All ranks ran the same operations so far, so the rank that continues as in earlier steps is right.
  std::string DescribeFault(absl::string_view own, int rank, absl::string_view theirs) const {
    if (history_.IsExpected(own) == history_.IsExpected(theirs)) return "";
    const int at_fault = history_.IsExpected(own) ? rank : rank_;
    return absl::StrCat("; rank ", segment_->NameOf(at_fault), " is at fault: in earlier steps, ",
                        history_.NextExpected(), " came next");
  }

  int64_t PieceElements(const SharedMemoryOperation& operation) const {
    const bool has_parts = operation.kind == Kind::kReduceScatter || operation.kind == Kind::kAllToAll;
    const size_t parts = has_parts ? static_cast<size_t>(world_size_) : 1;
    return std::max<int64_t>(1, static_cast<int64_t>(segment_->piece_bytes() / (operation.element_bytes * parts)));
  }

  static std::byte* At(const at::Tensor& tensor, int64_t element) {
    return static_cast<std::byte*>(tensor.data_ptr()) + element * static_cast<int64_t>(tensor.element_size());
  }

  // PublishInput and ReadInputs read everything that a piece needs of a tensor before they write any of it, so that the
  // tensors of an operation may overlap as communicator.h allows.
  void PublishInput(SharedMemoryOperation& operation, size_t bytes) {
    std::byte* space = segment_->InputSpace(rank_, ticket_);
    const at::Tensor& input = operation.input();
    operation.is_read_in_place = segment_->SetLocation(ticket_, input.defined() ? input.data_ptr() : nullptr,
                                                       input.defined() ? input.nbytes() : 0);
    if (operation.is_read_in_place) return;
    switch (operation.kind) {
      case Kind::kAllReduce:
        std::memcpy(space, At(operation.out, operation.start), bytes);
        return;
      case Kind::kBroadcast:
        if (rank_ == operation.root)
          std::memcpy(segment_->ResultSpace(ticket_), At(operation.out, operation.start), bytes);
        return;
      case Kind::kAllGather:
        std::memcpy(space, At(operation.in, operation.start), bytes);
        return;
      case Kind::kReduceScatter:
      case Kind::kAllToAll:
        for (int rank = 0; rank < world_size_; ++rank) {
          if (rank == rank_) continue;  // this rank already has its own part
          std::memcpy(space + static_cast<size_t>(rank) * bytes,
                      At(operation.in, rank * operation.num_elements + operation.start), bytes);
        }
        return;
      case Kind::kBarrier:
        return;
    }
  }

  absl::Status ReadInputs(const SharedMemoryOperation& operation, int64_t size) {
    const size_t bytes = static_cast<size_t>(size) * operation.element_bytes;
    switch (operation.kind) {
      case Kind::kAllReduce: {
        const auto [first, count] = ShareOf(rank_, size);
        std::vector<const std::byte*> parts;
        for (int rank = 0; rank < world_size_; ++rank) {
          ASSIGN_OR_RETURN(const std::byte* from, InputOf(rank, operation, operation.start + first,
                                                          static_cast<size_t>(first) * operation.element_bytes));
          parts.push_back(from);
        }
        // Sums into the tensor itself if the peers read it in place: no other rank reads this rank's share of it before
        // the sum is complete.
        std::byte* to = operation.is_read_in_place
                            ? At(operation.out, operation.start + first)
                            : segment_->ResultSpace(ticket_) + static_cast<size_t>(first) * operation.element_bytes;
        SumInRankOrder(operation.out.scalar_type(), parts.data(), world_size_, to, count);
        return absl::OkStatus();
      }
      case Kind::kBroadcast:
        if (rank_ != operation.root)
          std::memcpy(At(operation.out, operation.start), segment_->ResultSpace(ticket_), bytes);
        return absl::OkStatus();
      case Kind::kAllGather:
        for (int rank = 0; rank < world_size_; ++rank) {
          std::byte* to = At(operation.out, rank * operation.num_elements + operation.start);
          ASSIGN_OR_RETURN(const std::byte* from, InputOf(rank, operation, operation.start, 0));
          if (to != from) std::memcpy(to, from, bytes);
        }
        return absl::OkStatus();
      case Kind::kReduceScatter: {
        const at::ScalarType type = operation.out.scalar_type();
        std::vector<const std::byte*> parts;
        for (int rank = 0; rank < world_size_; ++rank) {
          ASSIGN_OR_RETURN(const std::byte* from,
                           InputOf(rank, operation, rank_ * operation.num_elements + operation.start,
                                   static_cast<size_t>(rank_) * bytes));
          parts.push_back(from);
        }
        SumInRankOrder(type, parts.data(), world_size_, At(operation.out, operation.start), size);
        return absl::OkStatus();
      }
      case Kind::kAllToAll:
        for (int rank = 0; rank < world_size_; ++rank) {
          ASSIGN_OR_RETURN(const std::byte* from,
                           InputOf(rank, operation, rank_ * operation.num_elements + operation.start,
                                   static_cast<size_t>(rank_) * bytes));
          std::memcpy(At(operation.out, rank * operation.num_elements + operation.start), from, bytes);
        }
        return absl::OkStatus();
      case Kind::kBarrier:
        return absl::OkStatus();
    }
    return absl::InternalError("unknown operation");
  }

  // The elements of an all-reduce's piece of `size` that `rank` sums.
  struct Share {
    int64_t first, count;
  };
  Share ShareOf(int rank, int64_t size) const {
    const int64_t first = size * rank / world_size_;
    return {first, size * (rank + 1) / world_size_ - first};
  }

  // Collects an all-reduce's sums, each from the rank that made it.
  absl::Status CollectSums(const SharedMemoryOperation& operation, int64_t size) {
    for (int rank = 0; rank < world_size_; ++rank) {
      const auto [first, count] = ShareOf(rank, size);
      std::byte* to = At(operation.out, operation.start + first);
      const std::byte* from = segment_->ResultSpace(ticket_) + static_cast<size_t>(first) * operation.element_bytes;
      if (rank != rank_) {
        ASSIGN_OR_RETURN(const std::byte* in, segment_->LocationOf(rank, ticket_));
        if (in != nullptr) from = in + static_cast<size_t>(operation.start + first) * operation.element_bytes;
      } else if (operation.is_read_in_place) {
        continue;
      }
      std::memcpy(to, from, static_cast<size_t>(count) * operation.element_bytes);
    }
    return absl::OkStatus();
  }

  // The input of `rank` from `element` on: read in place, or `offset` bytes into its InputSpace.
  absl::StatusOr<const std::byte*> InputOf(int rank, const SharedMemoryOperation& operation, int64_t element,
                                           size_t offset) {
    if (rank == rank_) return At(operation.input(), element);
    ASSIGN_OR_RETURN(const std::byte* in, segment_->LocationOf(rank, ticket_));
    if (in != nullptr) return in + static_cast<size_t>(element) * operation.element_bytes;
    return segment_->InputSpace(rank, ticket_) + offset;
  }

  // The first error is permanent, and ends the waits of the peers. Returns the first error.
  absl::Status Break(absl::Status status) {
    const bool gave_up = absl::IsDeadlineExceeded(status);
    if (log_.Fail(std::move(status))) segment_->Break(gave_up);
    return log_.error();
  }

  const int rank_;
  const int world_size_;
  const absl::Duration timeout_;
  std::unique_ptr<SharedSegment> segment_;
  std::deque<std::shared_ptr<SharedMemoryOperation>> queue_;  // started, but not yet run; used by one thread
  uint32_t ticket_ = 2;       // of the newest piece; the first two are used by SharedSegment::Join
  OperationHistory history_;  // of the operations that have run
  OperationLog log_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PlaceCommunicator>> NewPlaceCommunicator(const SharedSegmentOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<SharedSegment> segment, SharedSegment::Join(options));
  return std::make_unique<SharedMemoryCommunicator>(options, std::move(segment));
}

absl::StatusOr<std::unique_ptr<Communicator>> NewSharedMemoryCommunicator(const SharedSegmentOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " of ", options.world_size, " is not valid"));
  }
  if (options.world_size == 1) return NewSingleCommunicator();
  if (options.store == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("a world of ", options.world_size, " needs a key-value store"));
  }
  return NewPlaceCommunicator(options);
}

}  // namespace trainyard
