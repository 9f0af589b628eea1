#include "worker/trainer/probe.h"
#include "common/steady_cond_var.h"

#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/status_macros.h"
#include "worker/trainer/rank.h"
#include "worker/trainer/stopwatch.h"

namespace trainyard {
namespace {

constexpr int kLatencyWarmUps = 20;
constexpr int kLatencyRepeats = 101;  // odd: the median is one of them
constexpr int kBandwidthRepeats = 5;
constexpr int64_t kSmallBytes = 8;
constexpr absl::Duration kLocalTimeout = absl::Minutes(2);

double MatmulGflops(int64_t size, int64_t repeats) {
  at::Tensor a = at::full({size, size}, 0.5, at::kFloat), b = at::full({size, size}, 0.25, at::kFloat);
  double fastest = std::numeric_limits<double>::infinity();
  // The first product is not counted, because it creates threads and buffers.
  for (int64_t i = 0; i <= repeats; ++i) {
    Stopwatch watch;
    at::Tensor product = at::matmul(a, b);
    if (i > 0) fastest = std::min(fastest, watch.seconds());
  }
  const auto n = static_cast<double>(size);
  return 2 * n * n * n / fastest / 1e9;
}

// The seconds of each all-reduce, the shortest first; all ranks start together.
absl::StatusOr<std::vector<double>> TimeAllReduces(Communicator& communicator, int64_t bytes, int warm_ups,
                                                   int repeats) {
  at::Tensor tensor = at::zeros({std::max<int64_t>(1, bytes / 4)}, at::kFloat);
  RETURN_IF_ERROR(communicator.Barrier()->Wait());
  std::vector<double> seconds;
  for (int i = 0; i < warm_ups + repeats; ++i) {
    Stopwatch watch;
    RETURN_IF_ERROR(communicator.AllReduceSum(tensor)->Wait());
    if (i >= warm_ups) seconds.push_back(watch.seconds());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

absl::Status MeasureAllReduces(const TrainConfig::Probe& config, Communicator& communicator, ProbeFact& fact) {
  ASSIGN_OR_RETURN(std::vector<double> small,
                   TimeAllReduces(communicator, kSmallBytes, kLatencyWarmUps, kLatencyRepeats));
  fact.all_reduce_latency_s = small[small.size() / 2];
  ASSIGN_OR_RETURN(std::vector<double> large,
                   TimeAllReduces(communicator, config.all_reduce_bytes, /*warm_ups=*/1, kBandwidthRepeats));
  fact.all_reduce_bytes_per_s = static_cast<double>(config.all_reduce_bytes) / std::max(large.front(), 1e-9);
  return absl::OkStatus();
}

absl::Status Probe(const StartOrder& order, const RunOptions& options) {
  Link& link = options.link;
  link.ReportProgress(Phase::kJoining, 0);
  GlooOptions gloo{.rank = order.rank, .world_size = order.world_size, .store = &link};
  if (!order.data_address.empty()) gloo.address = order.data_address;
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, NewGlooCommunicator(gloo));
  auto abort_switch = std::make_shared<AbortSwitch>();
  abort_switch->Attach("world", communicator.get());
  link.OnAbort([abort_switch](const std::string& reason) { abort_switch->Abort(reason); });
  absl::Status status = [&]() -> absl::Status {
    RETURN_IF_ERROR(WarmUp(*communicator)) << "while warming up";
    link.ReportFact(ReadyFact{.first_step = 0, .parameters = 0});
    link.ReportProgress(Phase::kReady, 0);
    RETURN_IF_ERROR(link.AwaitGo(options.must_leave));
    link.ReportProgress(Phase::kTrain, 0);
    ASSIGN_OR_RETURN(ProbeFact fact, MeasureHost(*order.config.probe, *communicator));
    link.ReportFact(fact);
    options.log << absl::StrFormat("probe: %.1f GFLOP/s, all-reduce of 8 bytes %.1f us, of %d bytes %.1f MB/s",
                                   fact.matmul_gflops, fact.all_reduce_latency_s * 1e6,
                                   order.config.probe->all_reduce_bytes, fact.all_reduce_bytes_per_s / 1e6)
                << std::endl;
    link.ReportProgress(Phase::kEnded, 0);
    link.ReportFact(FinishedFact{.step = 0, .stopped = false, .loss = 0});
    return absl::OkStatus();
  }();
  abort_switch->Detach();
  return status;
}

// A key-value store for two threads of one process.
class LocalStore final : public KeyValueStore {
 public:
  absl::Status Put(absl::string_view name, absl::string_view value) override {
    absl::MutexLock lock(&mu_);
    values_.emplace(std::string(name), std::string(value));
    changed_.SignalAll();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(absl::string_view name, absl::Duration timeout) override {
    const std::string key(name);
    absl::MutexLock lock(&mu_);
    auto is_present = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return values_.count(key) > 0; };
    if (!changed_.AwaitFor(&mu_, timeout, is_present)) return absl::DeadlineExceededError(key);
    return values_.at(key);
  }

 private:
  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<ProbeFact> MeasureHost(const TrainConfig::Probe& config, Communicator& communicator) {
  ProbeFact fact;
  fact.matmul_gflops = MatmulGflops(config.matmul_size, config.matmul_repeats);
  if (communicator.world_size() == 1) return fact;
  RETURN_IF_ERROR(MeasureAllReduces(config, communicator, fact));
  return fact;
}

TrainerExit RunProbe(const StartOrder& order, const RunOptions& options) {
  absl::Status status = Probe(order, options);
  return status.ok() ? kExitDone : ReportFailure(status, 0, options.link, options.log);
}

absl::StatusOr<ProbeFact> ProbeThisHost(const TrainConfig::Probe& config) {
  // Measured before the ranks start, because a second product at the same time would use half of the host.
  ProbeFact fact;
  fact.matmul_gflops = MatmulGflops(config.matmul_size, config.matmul_repeats);
  LocalStore store;
  absl::Status statuses[2];
  ProbeFact facts[2];
  auto run = [&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                     NewGlooCommunicator({.rank = rank, .world_size = 2, .store = &store, .timeout = kLocalTimeout}));
    return MeasureAllReduces(config, *communicator, facts[rank]);
  };
  std::thread other([&] { statuses[1] = run(1); });
  statuses[0] = run(0);
  other.join();
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  fact.all_reduce_latency_s = facts[0].all_reduce_latency_s;
  fact.all_reduce_bytes_per_s = facts[0].all_reduce_bytes_per_s;
  return fact;
}

}  // namespace trainyard
