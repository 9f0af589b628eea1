#include "worker/cuda/nccl_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <stdlib.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <algorithm>
#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status_macros.h"
#include "common/steady_cond_var.h"
#include "worker/collectives/c10d_communicator.h"
#include "worker/collectives/operation_log.h"
#include "worker/collectives/rendezvous_store.h"

namespace trainyard {
namespace {

using Clock = std::chrono::steady_clock;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

// How often Watch looks for errors and timeouts; an abort does not wait for this.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(200);
// How often MonitoredBarrier checks whether all ranks have arrived.
constexpr absl::Duration kBarrierPollInterval = absl::Milliseconds(2);

const char* ErrorText(c10d::ErrorType error) {
  switch (error) {
    case c10d::ErrorType::SUCCESS:
      return "";
    case c10d::ErrorType::TIMEOUT:
      return "NCCL reports a timeout";
    case c10d::ErrorType::COMM_ERROR:
      return "NCCL reports an error of its communicator";
    case c10d::ErrorType::REMOTE_ERROR:
      return "NCCL reports an error of a peer";
  }
  return "NCCL reports an unknown error";
}

// An operation that was started and whose end on the device was not yet observed.
struct Pending {
  uint64_t number = 0;
  std::string name;
  WorkPointer work;
  Clock::time_point started;
  bool is_awaited = false;
};

class NcclCommunicator;

class NcclCollective final : public Collective {
 public:
  NcclCollective(NcclCommunicator& owner, uint64_t number, WorkPointer work, absl::Status status)
      : owner_(owner), number_(number), work_(std::move(work)), status_(std::move(status)) {}
  absl::Status Wait() override;

 private:
  NcclCommunicator& owner_;
  const uint64_t number_;
  WorkPointer work_;  // null after Wait
  absl::Status status_;
};

class NcclCommunicator final : public C10dCommunicator {
 public:
  NcclCommunicator(const NcclOptions& options, c10::intrusive_ptr<c10d::ProcessGroupNCCL> group)
      : C10dCommunicator(options.rank, options.world_size, *group),
        options_(options),
        device_(at::kCUDA, static_cast<c10::DeviceIndex>(options.device)),
        group_(std::move(group)) {
    watch_ = std::thread([this] { Watch(); });
  }

  ~NcclCommunicator() override {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
      changed_.SignalAll();
    }
    watch_.join();
    {
      absl::MutexLock lock(&mu_);
      pending_.clear();
    }
    if (aborter_.joinable()) aborter_.join();
    if (!log_.error().ok()) return;
    try {
      group_->shutdown();
    } catch (const std::exception&) {
      // Peers may have exited first; the group's destructor aborts the remaining operations.
    }
  }

  std::unique_ptr<Collective> ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) override {
    return NewHandle(Start("reduce-scatter", in, [&] {
      at::Tensor to = out.detach(), from = in.detach();
      return group_->_reduce_scatter_base(to, from);
    }));
  }
  std::unique_ptr<Collective> Barrier() override {
    return NewHandle(Start("barrier", at::Tensor(), [&] {
      std::vector<at::Tensor> tensors{at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device_))};
      return group_->allreduce(tensors);
    }));
  }

  absl::Status MonitoredBarrier(absl::Duration limit) override {
    std::unique_ptr<Collective> barrier = Barrier();
    RETURN_IF_ERROR(barrier->Wait());
    const absl::Duration longest_wait = std::min(limit, options_.timeout);
    const Clock::time_point deadline = Clock::now() + absl::ToChronoNanoseconds(longest_wait);
    {
      absl::MutexLock lock(&mu_);
      while (log_.error().ok()) {
        RemoveEnded();
        if (pending_.empty()) return absl::OkStatus();
        if (Clock::now() >= deadline) break;
        changed_.WaitFor(&mu_, kBarrierPollInterval);
      }
    }
    return Break(absl::DeadlineExceededError(absl::StrCat("not all of ", options_.world_size, " ranks arrived within ",
                                                          absl::FormatDuration(longest_wait))));
  }

  at::Tensor NewBuffer(int64_t numel, at::ScalarType type) override {
    return at::empty({numel}, at::TensorOptions().dtype(type).device(device_));
  }

  // Operations that the device has not finished count as in progress, even if the host has long continued.
  CollectiveProgress progress() const override {
    CollectiveProgress progress = log_.progress();
    absl::MutexLock lock(&mu_);
    RemoveEnded();
    progress.num_completed = num_ended_;
    progress.waits_in = !pending_.empty() && pending_.front().is_awaited ? pending_.front().name : "";
    return progress;
  }

  // Makes the current stream wait for operation `number`.
  absl::Status WaitOnStream(uint64_t number, c10d::Work& work) {
    {
      absl::MutexLock lock(&mu_);
      for (Pending& pending : pending_) {
        if (pending.number == number) pending.is_awaited = true;
      }
    }
    try {
      work.wait();
    } catch (const std::exception& error) {
      return Break(StatusFromException(error));
    }
    return log_.error();
  }

  // [Note: threads of aborts] An abort of one communicator waits until its kernels have ended. These may wait for
  // kernels of other communicators on the device, which wait for peers. So each communicator is aborted on a thread of
  // its own, and Abort returns immediately; a caller that aborts several of them in sequence is never blocked by the
  // first.
  absl::Status Break(absl::Status status) override {
    if (log_.Fail(std::move(status))) {
      absl::MutexLock lock(&mu_);
      changed_.SignalAll();
      aborter_ = std::thread([group = group_] {
        try {
          group->abort();
        } catch (const std::exception&) {
          // An abort fails if the group is already broken, which is the desired state.
        }
      });
    }
    return log_.error();
  }

 private:
  std::unique_ptr<Collective> NewHandle(Started started) override {
    const uint64_t number = ++num_started_;
    if (started.work != nullptr) {
      absl::MutexLock lock(&mu_);
      RemoveEnded();
      pending_.push_back(
          {.number = number, .name = std::move(started.name), .work = started.work, .started = Clock::now()});
    }
    return std::make_unique<NcclCollective>(*this, number, std::move(started.work), std::move(started.status));
  }

  // c10d's watchdog is disabled because it would end the process. Instead, this thread reports errors and timeouts.
  void Watch() {
    while (log_.error().ok()) {
      std::string overdue;
      absl::Status device_error;
      {
        absl::MutexLock lock(&mu_);
        if (!stopping_) changed_.WaitFor(&mu_, kWatchInterval);
        if (stopping_) return;
        RemoveEnded();
        const bool hangs =
            !pending_.empty() && Clock::now() - pending_.front().started > absl::ToChronoNanoseconds(options_.timeout);
        if (hangs) overdue = pending_.front().name;
        device_error = device_error_;
      }
      if (!device_error.ok()) {
        (void)Break(std::move(device_error));
        return;
      }
      if (!overdue.empty()) {
        (void)Break(AnnotateFailure(
            overdue, *this,
            absl::DeadlineExceededError(absl::StrCat("no progress within ", absl::FormatDuration(options_.timeout)))));
        return;
      }
      const c10d::ErrorType error = group_->getError();
      if (error != c10d::ErrorType::SUCCESS) (void)Break(absl::UnavailableError(ErrorText(error)));
    }
  }

  // c10d says that a failed operation is completed, too. It stays in pending_ until Watch breaks the group. If the
  // device has failed, isCompleted throws CUDA's error; callers such as Watch run on threads that must not end by it.
  void RemoveEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto has_ended = [](c10d::Work& work) { return work.isCompleted() && work.exception() == nullptr; };
    try {
      while (!pending_.empty() && has_ended(*pending_.front().work)) {
        pending_.pop_front();
        ++num_ended_;
      }
    } catch (const std::exception& error) {
      device_error_ = absl::InternalError(StatusFromException(error).message());
    }
  }

  const NcclOptions options_;
  const at::Device device_;
  const c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
  uint64_t num_started_ = 0;  // used only by the thread that starts operations
  mutable absl::Mutex mu_;
  mutable SteadyCondVar changed_;
  mutable std::deque<Pending> pending_ ABSL_GUARDED_BY(mu_);  // in the order in which they were started
  mutable uint64_t num_ended_ ABSL_GUARDED_BY(mu_) = 0;
  mutable absl::Status device_error_ ABSL_GUARDED_BY(mu_);  // not OK: Watch will break the group
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread aborter_;  // started by the first thread that breaks the group; joined last
  std::thread watch_;
};

absl::Status NcclCollective::Wait() {
  if (work_ == nullptr) return status_;
  status_ = owner_.WaitOnStream(number_, *work_);
  work_.reset();
  return status_;
}

}  // namespace

void SetNcclEnvironment() {
  // Variables that the user has set are respected, except the first five: with other values, c10d could end the process
  // or block a thread.
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/1);
  setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 1);
  setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 1);
  setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", 1);  // its thread would throw an error of CUDA, and no one catches it
  setenv("TORCH_NCCL_USE_COMM_NONBLOCKING", "1", 1);
  setenv("NCCL_RAS_ENABLE", "0", /*overwrite=*/0);  // would open a port, the same for all jobs of a host
}

absl::StatusOr<std::unique_ptr<Communicator>> NewNcclCommunicator(const NcclOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " of ", options.world_size, " is not valid"));
  }
  if (options.world_size > 1 && options.store == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("a world of ", options.world_size, " needs a key-value store"));
  }
  const std::chrono::milliseconds timeout(absl::ToInt64Milliseconds(options.timeout));
  c10::intrusive_ptr<RendezvousStore> rendezvous;
  c10::intrusive_ptr<c10d::Store> store;
  if (options.store == nullptr) {
    store = c10::make_intrusive<c10d::HashStore>();
  } else {
    store = rendezvous =
        c10::make_intrusive<RendezvousStore>(*options.store, absl::StrCat(options.prefix, "nccl/"), timeout);
  }
  try {
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(options.device));
    const c10::cuda::CUDAGuard guard(device);
    auto nccl = c10d::ProcessGroupNCCL::Options::create();
    nccl->timeout = timeout;
    nccl->config.blocking = 0;
    nccl->group_name = options.prefix;
    auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, options.rank, options.world_size, nccl);
    group->eagerConnectSingleDevice(device);
    return std::make_unique<NcclCommunicator>(options, std::move(group));
  } catch (const std::exception& error) {
    absl::Status status = rendezvous == nullptr ? absl::OkStatus() : rendezvous->failure();
    if (status.ok()) status = StatusFromException(error);
    return absl::Status(status.code(), absl::StrCat("rank ", options.rank, " of ", options.world_size,
                                                    " could not join its peers by NCCL: ", status.message()));
  }
}

}  // namespace trainyard
