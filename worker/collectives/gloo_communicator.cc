#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "worker/collectives/c10d_communicator.h"
#include "worker/collectives/communicator.h"
#include "worker/collectives/operation_log.h"
#include "worker/collectives/peer_communicator.h"
#include "worker/collectives/rank_sum.h"
#include "worker/collectives/rendezvous_store.h"
#include "worker/collectives/scratch.h"
#include "worker/collectives/silence_watch.h"
#include "worker/collectives/single_communicator.h"
#include "worker/collectives/tcp_sockets.h"

namespace trainyard {
namespace {

// The size of the longest numeric IPv6 address, with its terminating zero (INET6_ADDRSTRLEN).
constexpr int64_t kAddressBytes = 46;
// The size of the fields of a TcpEnd: address, port and closed port (tcp_sockets.h).
constexpr int64_t kListenerBytes = kAddressBytes + 4;

// Returns DeadlineExceeded if ranks are missing, which only LibTorch's message shows. If ranks 1 and 3 are missing, the
// message on rank 0 is "Ranks 1, 3 failed to pass monitoredBarrier in 50 ms". On rank 2 it is "Rank 2 successfully
// reached monitoredBarrier, but received errors while waiting" for rank 0. The messages are the same if a connection
// broke, or if rank 0 had given up before a rank arrived; then the wait has ended before the limit.
absl::Status StatusFromMonitoredBarrier(const std::exception& error, absl::Duration waited, absl::Duration limit) {
  absl::Status status = StatusFromException(error);
  const bool is_missing_ranks = absl::StrContains(status.message(), "failed to pass") ||
                                absl::StrContains(status.message(), "successfully reached");
  if (!is_missing_ranks || absl::IsDeadlineExceeded(status)) return status;
  if (waited >= 0.9 * limit) return absl::DeadlineExceededError(status.message());
  return absl::UnavailableError(absl::StrCat("a connection broke after ", absl::FormatDuration(waited), " of at most ",
                                             absl::FormatDuration(limit), ": ", status.message()));
}

// An all-reduce of at most this size uses one message between each pair of ranks instead of two.
constexpr int64_t kSmallBytes = int64_t{16} << 10;
// Tags of point-to-point messages. They are far from those of gloo's own barrier, which counts its tags from 0.
constexpr int kPartTag = 1 << 30, kPeerTag = kPartTag + 1;

using WorkPointer = c10::intrusive_ptr<c10d::Work>;

// The current work of gloo for an operation, and the step that follows it.
struct GlooOperation {
  std::string name = {};
  std::vector<WorkPointer> works = {};
  std::function<std::vector<WorkPointer>()> next = {};  // starts the next step; null: none. May throw
  bool is_over = false;
  absl::Status status = {};
};

class GlooCommunicator;

class GlooCollective final : public Collective {
 public:
  GlooCollective(GlooCommunicator& owner, std::shared_ptr<GlooOperation> operation)
      : owner_(owner), operation_(std::move(operation)) {}
  absl::Status Wait() override;

 private:
  GlooCommunicator& owner_;
  std::shared_ptr<GlooOperation> operation_;
};

class GlooCommunicator final : public C10dCommunicator, public PeerCommunicator {
 public:
  GlooCommunicator(const GlooOptions& options, c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
      : C10dCommunicator(options.rank, options.world_size, *group), group_(std::move(group)) {}

  ~GlooCommunicator() override {
    silence_watch_.reset();
    all_reduces_by_parts_.clear();
    group_.reset();
    for (int fd : connections_) close(fd);
    if (closed_port_fd_ >= 0) close(closed_port_fd_);
  }

  // Exchanges listening addresses with the peers. The addresses identify the connections of the group (tcp_sockets.h).
  absl::Status FindConnections(TcpEnd own) {
    closed_port_fd_ = BindClosedPort(own.address);
    if (closed_port_fd_ >= 0) own.closed_port = LocalPort(closed_port_fd_).value_or(0);
    at::Tensor mine = at::empty({kListenerBytes}, at::kByte).zero_();
    std::memcpy(mine.mutable_data_ptr(), own.address.data(), std::min<size_t>(own.address.size(), kAddressBytes - 1));
    std::memcpy(mine.mutable_data_ptr<uint8_t>() + kAddressBytes, &own.port, 2);
    std::memcpy(mine.mutable_data_ptr<uint8_t>() + kAddressBytes + 2, &own.closed_port, 2);
    at::Tensor all = at::empty({world_size() * mine.numel()}, at::kByte);
    RETURN_IF_ERROR(AllGather(all, mine)->Wait())
        << "while sending the listening address of rank " << rank() << " to its peers";

    std::vector<TcpEnd> peers;
    for (int r = 0; r < world_size(); ++r) {
      if (r == rank()) continue;
      const uint8_t* entry = all.const_data_ptr<uint8_t>() + r * mine.numel();
      TcpEnd& peer = peers.emplace_back();
      peer.address = reinterpret_cast<const char*>(entry);
      std::memcpy(&peer.port, entry + kAddressBytes, 2);
      std::memcpy(&peer.closed_port, entry + kAddressBytes + 2, 2);
    }
    ASSIGN_OR_RETURN(std::vector<int> connections, DuplicateConnections(own, peers));
    absl::MutexLock lock(&mu_);
    connections_ = std::move(connections);
    if (connections_.size() < peers.size()) {
      return absl::InternalError(absl::StrCat("rank ", rank(), " found ", connections_.size(), " connections to its ",
                                              peers.size(), " peers; an abort could not end its collectives"));
    }
    std::vector<WatchedConnection> watched;
    for (int fd : connections_) watched.push_back({.fd = fd, .probe_port = ClosedPortAcross(fd, peers)});
    silence_watch_ = std::make_unique<SilenceWatch>(
        watched, [this](const std::string& what) { (void)Break(absl::UnavailableError(what)); });
    return absl::OkStatus();
  }

  std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override {
    if (world_size() == 2) return C10dCommunicator::AllReduceSum(tensor);
    const bool small = static_cast<int64_t>(tensor.nbytes()) <= kSmallBytes || tensor.numel() < world_size();
    return small ? AllReduceDirect(tensor) : AllReduceByParts(tensor);
  }

  std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) override {
    // Every rank sends every other rank that rank's part, and sums the parts that it receives. LibTorch's own
    // reduce-scatter sends twice as much (it is an all-reduce of which each rank keeps a part), reads `in` immediately
    // instead of after earlier operations, and sums in the order of a ring.
    std::shared_ptr<Scratch> scratch;
    Started started = Start("reduce-scatter", in, [&] {
      CheckCanBeSummed(out);
      TORCH_CHECK(in.scalar_type() == out.scalar_type() && in.numel() == out.numel() * world_size() &&
                      in.is_contiguous() && out.is_contiguous(),
                  "the parts do not have the size of the whole, or are not dense");
      at::Tensor from = in.detach().view(-1);
      scratch = scratch_.Acquire(static_cast<int64_t>(from.nbytes()));
      at::Tensor parts = scratch->ViewLike(from);
      std::vector<int64_t> equal;
      return group_->alltoall_base(parts, from, equal, equal);
    });
    return NewHandle(std::move(started), [this, scratch, to = out.detach()] {
      SumParts(*scratch, to);
      return std::vector<WorkPointer>();
    });
  }

  std::unique_ptr<Collective> SendTo(const at::Tensor& tensor, int peer) override {
    return NewHandle(Start("send", tensor, [&] { return Send(tensor, peer, kPeerTag); }));
  }
  std::unique_ptr<Collective> ReceiveFrom(const at::Tensor& tensor, int peer) override {
    return NewHandle(Start("receive", tensor, [&] { return Receive(tensor, peer, kPeerTag); }));
  }
  std::unique_ptr<Collective> Barrier() override {
    return NewHandle(Start("barrier", at::Tensor(), [&] { return group_->barrier(); }));
  }

  absl::Status MonitoredBarrier(absl::Duration limit) override {
    absl::Status status = log_.error();
    if (!status.ok()) return status;
    log_.WaitBegins(log_.Start("monitored-barrier", at::Tensor()));
    const auto began = std::chrono::steady_clock::now();
    try {
      c10d::BarrierOptions options;
      options.timeout = std::chrono::milliseconds(absl::ToInt64Milliseconds(limit));
      group_->monitoredBarrier(options, /*waitAllRanks=*/true);
    } catch (const std::exception& error) {
      const absl::Duration waited = absl::FromChrono(std::chrono::steady_clock::now() - began);
      status = Break(StatusFromMonitoredBarrier(error, waited, limit));
    }
    if (status.ok()) log_.Complete();
    log_.WaitEnds();
    return status;
  }

  CollectiveProgress progress() const override { return log_.progress(); }

  // In an all-reduce by parts, the ranks first exchange parts and then send the sums. Starts the sending of sums, in
  // order, up to the first all-reduce whose parts have not all arrived. The sums are then sent during computation.
  void AdvanceOperations() override {
    for (const std::shared_ptr<GlooOperation>& operation : all_reduces_by_parts_) {
      if (operation->is_over || operation->next == nullptr) continue;
      if (!std::all_of(operation->works.begin(), operation->works.end(),
                       [](const WorkPointer& work) { return work->isCompleted(); })) {
        return;
      }
      Continue(*operation);
    }
  }

  absl::Status CarryOut(GlooOperation& operation) {
    if (operation.is_over) return operation.status;
    log_.WaitBegins(operation.name);
    // All ranks start to send the sums of all-reduces in the same order, because messages are matched by order only.
    for (const std::shared_ptr<GlooOperation>& each : all_reduces_by_parts_) {
      if (each.get() == &operation) break;
      if (each->next != nullptr) Continue(*each);
    }
    while (!operation.is_over) Continue(operation);
    if (operation.status.ok()) log_.Complete();
    log_.WaitEnds();
    std::erase_if(all_reduces_by_parts_, [&](const auto& each) { return each.get() == &operation; });
    return operation.status;
  }

  // Breaks the connections, so that no peer waits for data that will not arrive.
  absl::Status Break(absl::Status status) override {
    if (log_.Fail(std::move(status))) {
      absl::MutexLock lock(&mu_);
      for (int fd : connections_) shutdown(fd, SHUT_RDWR);
    }
    return log_.error();
  }

 private:
  std::unique_ptr<Collective> NewHandle(Started started) override { return NewHandle(std::move(started), nullptr); }

  std::unique_ptr<Collective> NewHandle(Started started, std::function<std::vector<WorkPointer>()> next) {
    return std::make_unique<GlooCollective>(*this, OperationOf(std::move(started), std::move(next)));
  }

  std::shared_ptr<GlooOperation> OperationOf(Started started, std::function<std::vector<WorkPointer>()> next) {
    auto operation =
        std::make_shared<GlooOperation>(GlooOperation{.name = std::move(started.name), .status = started.status});
    operation->is_over = started.work == nullptr;
    if (!operation->is_over) {
      operation->works.push_back(std::move(started.work));
      operation->next = std::move(next);
    }
    return operation;
  }

  // Waits for the current work and starts the next step.
  void Continue(GlooOperation& operation) {
    c10::NoGradGuard no_grad;
    try {
      for (const WorkPointer& work : operation.works) work->wait();
      operation.works.clear();
      if (operation.next != nullptr) operation.works = std::exchange(operation.next, nullptr)();
      operation.is_over = operation.works.empty();
    } catch (const std::exception& error) {
      operation.status = Break(AnnotateFailure(operation.name, *this, StatusFromException(error)));
      operation.works.clear();
      operation.next = nullptr;
      operation.is_over = true;
    }
  }

  // SumInRankOrder refuses types that it cannot sum; for 0 elements it does nothing else.
  static void CheckCanBeSummed(const at::Tensor& tensor) {
    TORCH_CHECK(SumInRankOrder(tensor.scalar_type(), nullptr, 0, nullptr, 0), tensor.scalar_type(),
                " cannot be summed");
  }

  // `to` becomes the sum of the tensors of all ranks, which have its size and follow one another in `scratch`.
  void SumParts(Scratch& scratch, const at::Tensor& to) const {
    const auto* from = static_cast<const std::byte*>(scratch.memory.const_data_ptr());
    std::vector<const std::byte*> of_rank;
    for (int rank = 0; rank < world_size(); ++rank) of_rank.push_back(from + rank * static_cast<int64_t>(to.nbytes()));
    SumInRankOrder(to.scalar_type(), of_rank.data(), world_size(), static_cast<std::byte*>(to.data_ptr()), to.numel());
    scratch.is_over = true;
  }

  // Every rank sends its whole tensor to every other rank.
  std::unique_ptr<Collective> AllReduceDirect(const at::Tensor& tensor) {
    std::shared_ptr<Scratch> scratch;
    Started started = Start("all-reduce", tensor, [&] {
      CheckCanBeSummed(tensor);
      at::Tensor from = tensor.detach().view(-1);
      scratch = scratch_.Acquire(static_cast<int64_t>(from.nbytes()) * world_size());
      at::Tensor all = scratch->As(from.scalar_type(), from.numel() * world_size());
      return group_->_allgather_base(all, from);
    });
    return NewHandle(std::move(started), [this, scratch, to = tensor.detach()] {
      SumParts(*scratch, to);
      return std::vector<WorkPointer>();
    });
  }

  // Every rank receives one part from all others, sums it, and sends the sum to all.
  std::unique_ptr<Collective> AllReduceByParts(const at::Tensor& tensor) {
    std::shared_ptr<Scratch> scratch;
    Started started = Start("all-reduce", tensor, [&] {
      CheckCanBeSummed(tensor);
      at::Tensor from = tensor.detach().view(-1);
      std::vector<int64_t> sizes, equal(static_cast<size_t>(world_size()), PartOf(from, rank()).numel());
      for (int r = 0; r < world_size(); ++r) sizes.push_back(PartOf(from, r).numel());
      const int64_t numel = equal[0] * world_size();
      scratch = scratch_.Acquire(numel * static_cast<int64_t>(from.element_size()));
      at::Tensor parts = scratch->As(from.scalar_type(), numel);
      return group_->alltoall_base(parts, from, equal, sizes);
    });
    if (started.work == nullptr) return NewHandle(std::move(started));
    auto send_sums = [this, scratch, whole = tensor.detach().view(-1)] {
      const at::Tensor mine = PartOf(whole, rank());
      SumParts(*scratch, mine);
      std::vector<WorkPointer> works;
      for (int r = 0; r < world_size(); ++r) {
        if (r != rank()) works.push_back(Receive(PartOf(whole, r), r, kPartTag));
      }
      for (int r = 0; r < world_size(); ++r) {
        if (r != rank()) works.push_back(Send(mine, r, kPartTag));
      }
      return works;
    };
    all_reduces_by_parts_.push_back(OperationOf(std::move(started), std::move(send_sums)));
    return std::make_unique<GlooCollective>(*this, all_reduces_by_parts_.back());
  }

  at::Tensor PartOf(const at::Tensor& whole, int r) const {
    const int64_t first = whole.numel() * r / world_size();
    return whole.narrow(0, first, whole.numel() * (r + 1) / world_size() - first);
  }

  WorkPointer Send(const at::Tensor& tensor, int peer, int tag) {
    std::vector<at::Tensor> tensors{tensor.detach()};
    return group_->send(tensors, peer, tag);
  }
  WorkPointer Receive(const at::Tensor& tensor, int peer, int tag) {
    std::vector<at::Tensor> tensors{tensor.detach()};
    return group_->recv(tensors, peer, tag);
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  ScratchPool scratch_;
  // All-reduces by parts that were started and not yet waited for, in the order in which they were started.
  std::vector<std::shared_ptr<GlooOperation>> all_reduces_by_parts_;
  absl::Mutex mu_;
  std::vector<int> connections_ ABSL_GUARDED_BY(mu_);
  int closed_port_fd_ = -1;                      // bound, not listening; peers send their probes to its port
  std::unique_ptr<SilenceWatch> silence_watch_;  // calls Break, so it is destroyed first
};

absl::Status GlooCollective::Wait() { return owner_.CarryOut(*operation_); }

// Returns the port of the listener that `make` opens, which is found by comparing the listeners before and after. Calls
// are serialised, so that the difference is unambiguous.
template <typename Make>
absl::StatusOr<uint16_t> PortOpenedBy(Make make) {
  static absl::Mutex* one_at_a_time = new absl::Mutex;
  absl::MutexLock lock(one_at_a_time);
  ASSIGN_OR_RETURN(std::set<int> before, TcpListeners());
  make();
  ASSIGN_OR_RETURN(std::set<int> after, TcpListeners());
  for (int fd : after) {
    if (!before.contains(fd)) return LocalPort(fd);
  }
  return absl::InternalError("gloo opened no listener");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> NewGlooCommunicator(const GlooOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " of ", options.world_size, " is not valid"));
  }
  if (options.world_size == 1) return NewSingleCommunicator();
  if (options.store == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("a world of ", options.world_size, " needs a key-value store"));
  }
  return NewGlooPeers(options);
}

absl::StatusOr<std::unique_ptr<PeerCommunicator>> NewGlooPeers(const GlooOptions& options) {
  std::chrono::milliseconds timeout(absl::ToInt64Milliseconds(options.timeout));
  auto store = c10::make_intrusive<RendezvousStore>(*options.store, options.prefix, timeout);
  try {
    auto gloo = c10d::ProcessGroupGloo::Options::create(timeout);
    gloo->threads = 1;  // its default of two threads would not keep operations in the order in which they were started
    TcpEnd own{.address = options.address};
    ASSIGN_OR_RETURN(own.port, PortOpenedBy([&] {
                       gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.address));
                     }));
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, options.rank, options.world_size, gloo);
    group->setSequenceNumberForGroup();

    auto communicator = std::make_unique<GlooCommunicator>(options, std::move(group));
    RETURN_IF_ERROR(communicator->FindConnections(own));
    return communicator;
  } catch (const std::exception& error) {
    absl::Status status = store->failure();
    if (status.ok()) status = StatusFromException(error);
    return absl::Status(status.code(), absl::StrCat("rank ", options.rank, " of ", options.world_size, " at ",
                                                    options.address, " could not join its peers: ", status.message()));
  }
}

}  // namespace trainyard
