#include <ATen/ops/empty.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status_macros.h"
#include "worker/collectives/c10d_communicator.h"
#include "worker/collectives/communicator.h"
#include "worker/collectives/operation_log.h"
#include "worker/collectives/rank_sum.h"
#include "worker/collectives/rendezvous_store.h"
#include "worker/collectives/scratch.h"
#include "worker/collectives/silence_watch.h"
#include "worker/collectives/single_communicator.h"
#include "worker/collectives/tcp_sockets.h"

namespace trainyard {
namespace {

// A numeric IPv6 address with its ending zero.
constexpr int64_t kAddressBytes = 46;
// That, the port of a Listener and its closed one.
constexpr int64_t kListenerBytes = kAddressBytes + 4;

// LibTorch says "Ranks 1, 3 failed to pass monitoredBarrier in 50 ms" on rank 0, and elsewhere that rank 0 did not
// answer.
absl::Status StatusOfMeeting(const std::exception& error) {
  absl::Status status = StatusOfException(error);
  const bool late = absl::StrContains(status.message(), "failed to pass") ||
                    absl::StrContains(status.message(), "successfully reached");
  return late ? absl::DeadlineExceededError(status.message()) : status;
}

class GlooCommunicator;

class GlooCollective final : public Collective {
 public:
  // `work` may be null when the operation could not be started; `status` then says why. `finish` may be null; called by
  // the wait, after `work`.
  GlooCollective(GlooCommunicator& owner, std::string name, c10::intrusive_ptr<c10d::Work> work,
                 std::function<void()> finish, absl::Status status)
      : owner_(owner),
        name_(std::move(name)),
        work_(std::move(work)),
        finish_(std::move(finish)),
        status_(std::move(status)) {}
  absl::Status Wait() override;

 private:
  GlooCommunicator& owner_;
  std::string name_;
  c10::intrusive_ptr<c10d::Work> work_;  // null once it is over
  std::function<void()> finish_;
  absl::Status status_;
};

class GlooCommunicator final : public C10dCommunicator {
 public:
  GlooCommunicator(const GlooOptions& options, c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
      : C10dCommunicator(options.rank, options.world_size, *group), group_(std::move(group)) {}

  ~GlooCommunicator() override {
    silence_watch_.reset();
    group_.reset();
    for (int fd : connections_) close(fd);
    if (closed_port_fd_ >= 0) close(closed_port_fd_);
  }

  // Tells the peers where we listen, hears where they do, and so learns which connections are the group's.
  absl::Status FindConnections(Listener own) {
    closed_port_fd_ = BindClosedPort(own.address);
    if (closed_port_fd_ >= 0) own.closed_port = LocalPort(closed_port_fd_).value_or(0);
    at::Tensor mine = at::empty({kListenerBytes}, at::kByte).zero_();
    std::memcpy(mine.mutable_data_ptr(), own.address.data(), std::min<size_t>(own.address.size(), kAddressBytes - 1));
    std::memcpy(mine.mutable_data_ptr<uint8_t>() + kAddressBytes, &own.port, 2);
    std::memcpy(mine.mutable_data_ptr<uint8_t>() + kAddressBytes + 2, &own.closed_port, 2);
    at::Tensor all = at::empty({world_size() * mine.numel()}, at::kByte);
    RETURN_IF_ERROR(AllGather(all, mine)->Wait()) << "while telling the peers where rank " << rank() << " listens";

    std::vector<Listener> peers;
    for (int r = 0; r < world_size(); ++r) {
      if (r == rank()) continue;
      const uint8_t* entry = all.const_data_ptr<uint8_t>() + r * mine.numel();
      Listener& peer = peers.emplace_back();
      peer.address = reinterpret_cast<const char*>(entry);
      std::memcpy(&peer.port, entry + kAddressBytes, 2);
      std::memcpy(&peer.closed_port, entry + kAddressBytes + 2, 2);
    }
    ASSIGN_OR_RETURN(std::vector<int> connections, DuplicateConnections(own, peers));
    absl::MutexLock lock(&mu_);
    connections_ = std::move(connections);
    if (connections_.size() < peers.size()) {
      return absl::InternalError(absl::StrCat("rank ", rank(), " found ", connections_.size(), " connections to its ",
                                              peers.size(), " peers; it could not leave a collective when told to"));
    }
    std::vector<WatchedConnection> watched;
    for (int fd : connections_) watched.push_back({.fd = fd, .probe_port = ClosedPortAcross(fd, peers)});
    silence_watch_ = std::make_unique<SilenceWatch>(
        watched, [this](const std::string& what) { (void)Break(absl::UnavailableError(what)); });
    return absl::OkStatus();
  }

  std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) override {
    // Everyone sends everyone its part, and sums what it gets. LibTorch's own sends twice as much (it takes its part of
    // an all-reduce), reads `in` when it is started instead of in its turn, and sums in the order of a ring.
    std::shared_ptr<Scratch> scratch;
    Started started = Start("reduce-scatter", in, [&] {
      TORCH_CHECK(SumInRankOrder(out.scalar_type(), nullptr, 0, nullptr, 0), out.scalar_type(), " has no sum");
      TORCH_CHECK(in.scalar_type() == out.scalar_type() && in.numel() == out.numel() * world_size() &&
                      in.is_contiguous() && out.is_contiguous(),
                  "the parts do not make up the whole, densely");
      at::Tensor from = in.detach().view(-1);
      scratch = scratch_.Take(static_cast<int64_t>(from.nbytes()));
      at::Tensor parts = scratch->ViewLike(from);
      std::vector<int64_t> equal;
      return group_->alltoall_base(parts, from, equal, equal);
    });
    auto sum = [world = world_size(), scratch, to = out.detach()] {
      const auto* from = static_cast<const std::byte*>(scratch->memory.const_data_ptr());
      std::vector<const std::byte*> of_rank;
      for (int rank = 0; rank < world; ++rank) of_rank.push_back(from + rank * static_cast<int64_t>(to.nbytes()));
      SumInRankOrder(to.scalar_type(), of_rank.data(), world, static_cast<std::byte*>(to.data_ptr()), to.numel());
      scratch->is_over = true;
    };
    return std::make_unique<GlooCollective>(*this, std::move(started.name), std::move(started.work), std::move(sum),
                                            std::move(started.status));
  }
  std::unique_ptr<Collective> Barrier() override {
    return HandleOf(Start("barrier", at::Tensor(), [&] { return group_->barrier(); }));
  }

  absl::Status Meet(absl::Duration limit) override {
    absl::Status status = log_.error();
    if (!status.ok()) return status;
    log_.WaitBegins(log_.Start("meeting", at::Tensor()));
    try {
      c10d::BarrierOptions options;
      options.timeout = std::chrono::milliseconds(absl::ToInt64Milliseconds(limit));
      group_->monitoredBarrier(options, /*waitAllRanks=*/true);
    } catch (const std::exception& error) {
      status = Break(StatusOfMeeting(error));
    }
    if (status.ok()) log_.Complete();
    log_.WaitEnds();
    return status;
  }

  CollectiveProgress progress() const override { return log_.progress(); }

  // Breaks the connections, so that no peer waits for what will not come.
  absl::Status Break(absl::Status status) override {
    if (log_.Fail(std::move(status))) {
      absl::MutexLock lock(&mu_);
      for (int fd : connections_) shutdown(fd, SHUT_RDWR);
    }
    return log_.error();
  }

 private:
  std::unique_ptr<Collective> HandleOf(Started started) override {
    return std::make_unique<GlooCollective>(*this, std::move(started.name), std::move(started.work), nullptr,
                                            std::move(started.status));
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  ScratchPool scratch_;
  absl::Mutex mu_;
  std::vector<int> connections_ ABSL_GUARDED_BY(mu_);
  int closed_port_fd_ = -1;                      // where peers probe
  std::unique_ptr<SilenceWatch> silence_watch_;  // calls the above, so it ends first
};

absl::Status GlooCollective::Wait() {
  if (work_ == nullptr) return status_;
  owner_.log().WaitBegins(name_);
  try {
    work_->wait();
  } catch (const std::exception& error) {
    status_ = owner_.Break(FailureOf(name_, owner_, StatusOfException(error)));
  }
  if (status_.ok() && finish_ != nullptr) finish_();
  if (status_.ok()) owner_.log().Complete();
  owner_.log().WaitEnds();
  work_.reset();
  finish_ = nullptr;
  return status_;
}

// The listener that `make` opens, as seen by the difference it makes. One at a time, so that the difference is its own.
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
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " of ", options.world_size, " cannot be"));
  }
  if (options.world_size == 1) return NewSingleCommunicator();
  if (options.store == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("a world of ", options.world_size, " needs a key-value store"));
  }
  std::chrono::milliseconds timeout(absl::ToInt64Milliseconds(options.timeout));
  auto store = c10::make_intrusive<RendezvousStore>(*options.store, options.prefix, timeout);
  try {
    auto gloo = c10d::ProcessGroupGloo::Options::create(timeout);
    gloo->threads = 1;  // what is started first is carried out first, which its two threads would not keep to
    Listener own{.address = options.address};
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
    if (status.ok()) status = StatusOfException(error);
    return absl::Status(status.code(), absl::StrCat("rank ", options.rank, " of ", options.world_size, " at ",
                                                    options.address, " could not join its peers: ", status.message()));
  }
}

}  // namespace trainyard
