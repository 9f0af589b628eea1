// trainyard-trainer: one rank of a job. The only file that uses both the control link (gRPC) and the engine (torch),
// each behind headers that do not include the other.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "checkpoint/fault_points.h"
#include "common/clock.h"
#include "common/descriptor_limit.h"
#include "common/files.h"
#include "common/plural.h"
#include "common/standard_descriptors.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "worker/cuda/cuda_loader.h"
#include "worker/diagnostics/ledger.h"
#include "worker/link/grpc_link.h"
#include "worker/link/spec_config.h"
#include "worker/numerics/cpu.h"
#include "worker/numerics/mkl_lever.h"
#include "worker/trainer/build_tokens.h"
#include "worker/trainer/environment_report.h"
#include "worker/trainer/kernel_budget.h"
#include "worker/trainer/kernel_choice.h"
#include "worker/trainer/kernel_timer.h"
#include "worker/trainer/options.h"
#include "worker/trainer/probe.h"
#include "worker/trainer/run.h"
#include "worker/trainer/sample.h"
#include "worker/trainer/stack_signal.h"

namespace trainyard {
namespace {

// How long to wait for the daemon's order to start. The daemon answers within milliseconds. A daemon that was replaced
// has an order only once it has reached the coordinator, and an outage of both must not end the rank: it has this much
// time, like ranks that wait for each other before the first step. When the group is over, the daemon ends the rank.
constexpr absl::Duration kStartLimit = absl::Hours(12);
// How long to wait for the last reports to reach a daemon that is restarting.
constexpr absl::Duration kCloseLimit = absl::Seconds(5);
// How long to wait for ranks on other hosts, which may be measuring kernels or still starting, perhaps without a
// coordinator. The members of a group wait as long for each other (GroupOptions::timeout).
constexpr absl::Duration kAgreementLimit = absl::Minutes(30);
// How long to wait for the processes that time kernels. They need about 100 ms, but a CPU may be very busy.
constexpr absl::Duration kTimerLimit = absl::Seconds(10);

std::atomic<bool> must_leave = false;
// Set when the loop begins to check for signals. Until then, while this rank opens its data and waits for its peers, a
// signal must end the process.
std::atomic<bool> loop_checks_signals = false;

void WatchSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int number) {
    must_leave = true;
    if (loop_checks_signals) return;
    signal(number, SIG_DFL);
    raise(number);
  };
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a closed log must not kill the process
}

// The lever makes MKL use the kernels that it has for Intel's CPUs on other CPUs, too (mkl_lever.h).
MklLever LeverOf(TrainConfig::ProductKernels choice) {
  switch (choice) {
    case TrainConfig::ProductKernels::kMklIntel:
      return MklLever::kOn;
    case TrainConfig::ProductKernels::kMkl:
      return MklLever::kOff;
    case TrainConfig::ProductKernels::kAuto:
      break;
  }
  return MklLever::kAuto;
}

// The value of resources.product_kernels for a setting of the lever.
const char* KernelsOfLever(bool is_on) { return is_on ? "mkl_intel" : "mkl"; }

double SteadySeconds() { return absl::ToDoubleSeconds(Clock::GetSteadyClock().TimeNow() - absl::UnixEpoch()); }

// Runs in a process of its own, before its first tensor operation.
std::vector<double> TimeShapes(bool with_lever, const std::vector<ProductShape>& shapes) {
  const double start = SteadySeconds();
  at::set_num_threads(1);
  UseMklLever(with_lever ? MklLever::kOn : MklLever::kOff);
  TimeProducts({.rows = 8, .in = 8, .out = 8});  // MKL prepares itself in its first product
  TimingLimits limits;
  limits.budget_s -= SteadySeconds() - start;
  return TimeWithinBudget(shapes, limits, SteadySeconds, TimeProducts);
}

// Call before the process has several threads, if it may have to choose kernels. Null: there is nothing to choose.
absl::StatusOr<std::unique_ptr<KernelTimer>> StartKernelTimer() {
  if (!MklLeverHasEffect()) return nullptr;
  return KernelTimer::Start(TimeShapes);
}

using StartedTimer = absl::StatusOr<std::unique_ptr<KernelTimer>>;

// The measurement is made once per CPU and set of shapes.
absl::StatusOr<KernelSpeeds> LoadKernelSpeeds(const std::vector<ProductShape>& shapes, const StartedTimer& timer) {
  ASSIGN_OR_RETURN(const std::string folder, KernelSpeedsFolder());
  return LoadOrMeasure(JoinPath(folder, KernelSpeedsName(CpuKey(), shapes)), [&]() -> absl::StatusOr<KernelSpeeds> {
    RETURN_IF_ERROR(timer.status());
    return (*timer)->Measure(shapes, kTimerLimit);
  });
}

struct KernelChoice {
  MklLever lever = MklLever::kAuto;
  std::string reason;  // empty: the job or the CPU decides
};

// What this host chooses. Nothing is measured if there is nothing to choose.
KernelChoice ChooseKernels(MklLever choice, const std::vector<ProductShape>& shapes, const StartedTimer& timer) {
  if (choice != MklLever::kAuto || !MklLeverHasEffect()) return {.lever = choice, .reason = ""};
  const bool expected = BestVectorCode() == VectorCode::kAvx512;
  const absl::StatusOr<KernelSpeeds> speeds = LoadKernelSpeeds(shapes, timer);
  if (!speeds.ok()) {
    return {.lever = expected ? MklLever::kOn : MklLever::kOff,
            .reason = absl::StrCat("no measurement can be used: ", speeds.status().message())};
  }
  return {.lever = LeverIsFaster(*speeds, expected) ? MklLever::kOn : MklLever::kOff,
          .reason = absl::StrFormat("measured once on this CPU for this model, one thread, in %.0f ms: %.0f GFLOP/s "
                                    "with mkl_intel, %.0f with mkl",
                                    speeds->measured_ms, speeds->with_lever, speeds->without)};
}

// Called before the first tensor operation of the process. Returns the decision, for the log.
std::string UseKernels(const KernelChoice& choice) {
  const std::string kernels = SetMklLever(choice.lever);
  return choice.reason.empty() ? kernels : absl::StrCat(kernels, "; ", choice.reason);
}

// Returns what ChooseKernels would decide for `auto`, but measures nothing: the first measurement is stored and decides
// for all later runs on this host, so a report must not make it.
KernelDecision FindKernels() {
  if (!MklLeverHasEffect()) {
    const std::string sentence = SetMklLever(MklLever::kAuto);
    return {.product_kernels = KernelsOfLever(MklLeverIsOn()), .sentence = sentence};
  }
  const absl::StatusOr<std::string> folder = KernelSpeedsFolder();
  const double start = SteadySeconds();
  const std::vector<KernelSpeeds> all =
      folder.ok() ? ReadAllKernelSpeeds(*folder, CpuKey()) : std::vector<KernelSpeeds>();
  const double read_ms = 1e3 * (SteadySeconds() - start);
  if (all.empty()) {
    return {.product_kernels = "not decided",
            .sentence = "the first job that trains a model times both kinds of kernels for its products"};
  }
  const bool expected = BestVectorCode() == VectorCode::kAvx512;
  const auto count = static_cast<size_t>(std::count_if(
      all.begin(), all.end(), [&](const KernelSpeeds& speeds) { return LeverIsFaster(speeds, expected); }));
  double longest_ms = 0;
  for (const KernelSpeeds& speeds : all) longest_ms = std::max(longest_ms, speeds.measured_ms);
  return {.product_kernels = count == 0 || count == all.size() ? KernelsOfLever(count > 0) : "differs by model",
          .sentence = absl::StrFormat("measured once on this CPU for each of %s, in at most %.0f ms, and read in %.1f "
                                      "ms; mkl_intel is faster for %d",
                                      Plural(all.size(), "model"), longest_ms, read_ms, count)};
}

// Each host of the job may have chosen on its own; hosts with equal CPUs must use the same choice.
absl::StatusOr<KernelChoice> AgreeOnKernels(KernelChoice own, const StartOrder& order, Link& link) {
  if (order.world_size == order.local_world_size) return own;
  const std::string key = MklLeverHasEffect() ? CpuKey() : "";
  const bool is_on = own.lever == MklLever::kOn;
  ASSIGN_OR_RETURN(const bool agreed, AgreeOnLever(link, order.rank, key, is_on, kAgreementLimit));
  if (key.empty() || agreed == is_on) return own;
  return KernelChoice{.lever = agreed ? MklLever::kOn : MklLever::kOff,
                      .reason = absl::StrCat(own.reason,
                                             "; a lower rank with the same kind of CPU chose otherwise, "
                                             "and all such ranks use its choice")};
}

// Called before the first tensor operation of the process.
absl::Status SetUpEngine(const StartOrder& order, Link& link, StartedTimer timer) {
  Ledger::ForProcess();  // accounts for memory from now on
  at::set_num_threads(order.threads);
  at::set_num_interop_threads(1);
  const TrainConfig& config = order.config;
  const bool is_auto = config.product_kernels == TrainConfig::ProductKernels::kAuto;
  const std::vector<ProductShape> shapes =
      config.probe.has_value() ? DefaultShapes()
                               : ShapesToTime(config.model, config.batch_micro * config.sequence_length());
  const absl::Time start = Clock::GetSteadyClock().TimeNow();
  KernelChoice choice = ChooseKernels(LeverOf(config.product_kernels), shapes, timer);
  const double chosen_ms = absl::ToDoubleMilliseconds(Clock::GetSteadyClock().TimeNow() - start);
  timer = std::unique_ptr<KernelTimer>();  // ends its process
  if (is_auto) {
    ASSIGN_OR_RETURN(choice, AgreeOnKernels(std::move(choice), order, link));
  }
  if (config.device == TrainConfig::Device::kCuda && !config.probe.has_value()) {
    // Must precede the first tensor operation, which UseKernels makes. ChooseDevice reports the error, if any.
    OpenCudaPlugin(DefaultCudaPluginPath()).IgnoreError();
  }
  const std::string kernels = UseKernels(choice);
  // One rank reports for all ranks of its host.
  if (is_auto && order.local_rank == 0) {
    link.ReportFact(DecidedFact{{{"resources.product_kernels", KernelsOfLever(MklLeverIsOn()), kernels}}});
  }
  if (order.rank == 0) {
    std::cout << absl::StrFormat("threads: %d per rank; %s (chosen in %.1f ms)", order.threads, kernels, chosen_ms)
              << std::endl;
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelSizes> SizesFromSpec(absl::string_view spec_bytes) {
  ASSIGN_OR_RETURN(const TrainConfig config, ModelConfigFromSpec(spec_bytes));
  return config.model;
}

int RunTraining(const TrainerOptions& options) {
  WatchSignals();
  RaiseDescriptorLimit();  // in a group over gloo, each peer needs two descriptors
  StartedTimer timer = StartKernelTimer();
  const char* stack_file = getenv("TRAINYARD_STACK_FILE");
  WriteStackAtSignal(stack_file == nullptr ? "" : stack_file);
  const char* token = getenv("TRAINYARD_TOKEN");
  std::unique_ptr<Link> link = NewGrpcLink({.socket = options.link,
                                            .job_id = options.job,
                                            .generation = options.generation,
                                            .rank = options.rank,
                                            .token = token == nullptr ? "" : token});
  absl::StatusOr<StartOrder> order = link->AwaitStart(kStartLimit);
  absl::StatusOr<FileSystem*> file_system =
      InstallFaultPoints(getenv(kFaultPointsVariable), options.rank, options.generation, FileSystem::Real());
  if (order.ok() && !file_system.ok()) order = file_system.status();
  if (const char* folder = getenv("TRAINYARD_SNAPSHOTS"); order.ok() && folder != nullptr) {
    order->snapshot_folder = folder;
  }
  TrainerExit code;
  if (order.ok()) {
    link->ReportFact(RegisteredFact{.spec_digest = order->spec_digest});
    std::cout << "trainyard-trainer " << kVersion << ": job " << order->config.job_name << " (" << order->job_id
              << "), generation " << order->generation << ", rank " << order->rank << " of " << order->world_size
              << " on host " << order->host << std::endl;
    const absl::Status set_up = SetUpEngine(*order, *link, std::move(timer));
    code = !set_up.ok() ? ReportFailure(set_up, 0, *link, std::cerr)
                        : RunRank(*order, {.link = *link,
                                           .file_system = **file_system,
                                           .log = std::cout,
                                           .must_leave =
                                               [] {
                                                 loop_checks_signals = true;
                                                 return must_leave.load();
                                               },
                                           .ledger = &Ledger::ForProcess(),
                                           .sizes_of_spec = SizesFromSpec});
  } else if (absl::IsDeadlineExceeded(order.status())) {
    std::cerr << order.status().message() << std::endl;
    code = kExitFailed;
  } else {
    code = ReportFailure(order.status(), 0, *link, std::cerr);
  }
  link->Close(kCloseLimit);
  return code;
}

// Returns the exit code of a command whose result is its output.
int ExitCodeOfOutput(const char* command) {
  if (std::cout.good()) return kExitDone;
  std::cerr << command << ": standard output cannot be written: " << strerror(errno) << "\n";
  return kExitFailed;
}

int SampleTexts(const SampleOptions& options) {
  const StartedTimer timer = StartKernelTimer();  // before LibTorch has threads
  at::set_num_threads(1);                         // RunSample uses more for large models
  UseKernels(ChooseKernels(MklLever::kAuto, DefaultShapes(), timer));
  return RunSample(options);
}

int RunHostProbe(const ProbeOptions& options) {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int threads = options.threads > 0 ? options.threads : cores;
  const StartedTimer timer = StartKernelTimer();  // before LibTorch has threads
  at::set_num_threads(threads);
  const std::string kernels = UseKernels(ChooseKernels(MklLever::kAuto, DefaultShapes(), timer));
  absl::StatusOr<ProbeFact> fact = ProbeThisHost({.matmul_size = options.matmul_size,
                                                  .matmul_repeats = options.matmul_repeats,
                                                  .all_reduce_bytes = options.all_reduce_bytes});
  if (!fact.ok()) {
    std::cerr << "probe: " << fact.status().message() << "\n";
    return kExitFailed;
  }
  if (options.json) {
    nlohmann::ordered_json json = {{"event", "probe"},
                                   {"threads", threads},
                                   {"matmul_gflops", fact->matmul_gflops},
                                   {"all_reduce_latency_s", fact->all_reduce_latency_s},
                                   {"all_reduce_bytes_per_s", fact->all_reduce_bytes_per_s}};
    std::cout << json.dump() << std::endl;
    return ExitCodeOfOutput("probe");
  }
  std::cout << absl::StrFormat(
                   "matrix product of %d: %.1f GFLOP/s with %d threads; %s\n"
                   "all-reduce over loopback, two ranks: %.1f us for 8 bytes, %.1f MB/s for %d bytes",
                   options.matmul_size, fact->matmul_gflops, threads, kernels, fact->all_reduce_latency_s * 1e6,
                   fact->all_reduce_bytes_per_s / 1e6, options.all_reduce_bytes)
            << std::endl;
  return ExitCodeOfOutput("probe");
}

int PrintEnvironment() {
  at::set_num_threads(1);
  const NcclVersion nccl = FindNccl();  // loads CUDA, which must come before the first tensor operation
  std::cout << EnvironmentReport(nccl, FindKernels()) << std::endl;
  return ExitCodeOfOutput("environment");
}

int RunCommand(const TrainerOptions& options) {
  switch (options.command) {
    case TrainerOptions::Command::kEnvironment:
      return PrintEnvironment();
    case TrainerOptions::Command::kSample:
      return SampleTexts(options.sample);
    case TrainerOptions::Command::kBuildTokens:
      at::set_num_threads(1);  // RunBuildTokens starts threads of its own
      return RunBuildTokens(options.build_tokens);
    case TrainerOptions::Command::kProbe:
      return RunHostProbe(options.probe);
    case TrainerOptions::Command::kTrain:
      break;
  }
  return RunTraining(options);
}

int Run(int argc, char** argv) {
  TrainerOptions options;
  int exit_code = kExitDone;
  if (!ParseOptions(argc, argv, options, exit_code)) return exit_code;
  // Ends the program with the message of an exception of LibTorch, whose backtrace is not useful in a log.
  try {
    return RunCommand(options);
  } catch (const c10::Error& error) {
    std::cerr << "trainyard-trainer: " << error.what_without_backtrace() << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "trainyard-trainer: " << error.what() << std::endl;
  }
  return kExitFailed;
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
#ifndef TRAINYARD_SANITIZED
  // By default Debian's Abseil checks for lock cycles at every lock, which costs time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  int code = trainyard::Run(argc, argv);
  std::cout.flush();
  std::fflush(nullptr);
  // Nothing is left to do, so this skips the destructors of a gigabyte of libraries.
  _exit(code);
}
